"""NATS' client protocol, as far as somebody in the middle must read it: where one message ends and the next begins.

    PUB <subject> [reply] <bytes>            MSG <subject> <sid> [reply] <bytes>
    HPUB <subject> [reply] <head> <bytes>    HMSG <subject> <sid> [reply] <head> <bytes>

each followed by so many bytes and CR LF; `<head>` of them are headers. Everything else is a line (INFO, CONNECT, SUB,
UNSUB, PING, PONG, +OK, -ERR). https://docs.nats.io/reference/reference-protocols/nats-protocol
"""

from typing import NamedTuple

_END = b"\r\n"
_WITH_PAYLOAD = frozenset({b"PUB", b"HPUB", b"MSG", b"HMSG"})
_WITH_HEADERS = frozenset({b"HPUB", b"HMSG"})


class Piece(NamedTuple):
    """A whole message or a whole line: `raw` is all of it. A line has neither `subject` nor `payload`."""

    raw: bytes
    subject: str = ""
    payload: bytes = b""


class Splitter:
    """Cuts one direction of a connection into pieces, however the network cut it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Piece]:
        """The pieces that are complete with `data`, in order. Raises ValueError if a message has not the size it says."""
        rest = self._rest
        rest += data
        pieces, at = [], 0
        while (line_end := rest.find(_END, at)) >= 0:
            verb, *words = bytes(rest[at:line_end]).split()
            body = end = line_end + len(_END)
            if verb in _WITH_PAYLOAD:
                size = int(words[-1])
                end = body + size + len(_END)
                if end > len(rest):
                    break
                if rest[end - len(_END) : end] != _END:
                    raise ValueError(f"a message longer than it says: {bytes(rest[at:line_end])!r}")
                head = int(words[-2]) if verb in _WITH_HEADERS else 0
                pieces.append(Piece(bytes(rest[at:end]), words[0].decode(), bytes(rest[body + head : body + size])))
            else:
                pieces.append(Piece(bytes(rest[at:end])))
            at = end
        del rest[:at]
        return pieces
