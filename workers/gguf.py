"""Read what a GGUF model file says about itself: its metadata and its vocabulary, never its weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (little-endian, versions 2 and 3).
"""

import codecs
import hashlib
import mmap
import struct
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from shared.errors import ModelError

_MAGIC: Final = b"GGUF"
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_MAX_ITEMS: Final = 16_000_000
_UNKNOWN_TOKEN: Final = 2
_CONTROL_TOKEN: Final = 3
_BYTE_TOKEN: Final = 6


class _Reader:
    """A cursor over the file. Every read is checked, so that a cut or altered file raises instead of crashing."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) != size:
            raise ModelError("the file ends inside its metadata")
        self._at += size
        return piece

    def scalar(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        return self.take(self.scalar("<Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.scalar("<I"), self.scalar("<Q")
            if count > _MAX_ITEMS:
                raise ModelError(f"an array of {count} items in the metadata")
            if inner in _SCALARS:
                size = struct.calcsize(_SCALARS[inner])
                return list(struct.unpack(f"<{count}{_SCALARS[inner][1]}", self.take(size * count)))
            return [self.value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise ModelError(f"unknown metadata type {kind}")
        return self.scalar(_SCALARS[kind])


def read_metadata(path: Path) -> dict[str, Any]:
    """All key/value pairs of the file's header. Raises ModelError if it is missing or no GGUF file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = _Reader(data)
            if reader.take(4) != _MAGIC:
                raise ModelError(f"{path.name} is not a GGUF file")
            if (version := reader.scalar("<I")) not in (2, 3):
                raise ModelError(f"{path.name} has GGUF version {version}; 2 and 3 are known")
            reader.scalar("<Q")  # number of tensors
            pairs: dict[str, Any] = {}
            for _ in range(reader.scalar("<Q")):
                key = reader.string()
                pairs[key] = reader.value(reader.scalar("<I"))
            return pairs
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path.name}: {error}") from error


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (`bytes_to_unicode` in openai/gpt-2), inverted."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


_ALPHABET: Final = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    return bytes(_ALPHABET[c] for c in token) if all(c in _ALPHABET for c in token) else token.encode()


def _sentence_piece(token: str, kind: int) -> bytes:
    if kind == _BYTE_TOKEN:
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


class Vocabulary:
    """Token ids to bytes and back. `pieces[id]` are the bytes a token stands for, control tokens spelled out."""

    def __init__(self, pieces: list[bytes], control: Iterable[int], *, bos: int = -1, eos: int = -1) -> None:
        self.pieces = pieces
        self.control = frozenset(control)
        self.bos = bos
        self.eos = eos

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any]) -> Self:
        """From a GGUF header: byte-level BPE (`gpt2`) or SentencePiece (`llama`). Raises ModelError for others."""
        kind = metadata.get("tokenizer.ggml.model")
        tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
        types: list[int] = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
        control = [n for n, of in enumerate(types) if of in (_UNKNOWN_TOKEN, _CONTROL_TOKEN)]
        if kind not in ("gpt2", "llama") or not tokens or len(types) != len(tokens):
            raise ModelError(f"a vocabulary of kind {kind!r} with {len(tokens)} tokens cannot be used")
        apart = set(control)
        pieces = [
            token.encode() if n in apart else _byte_level(token) if kind == "gpt2" else _sentence_piece(token, types[n])
            for n, token in enumerate(tokens)
        ]
        return cls(
            pieces,
            control,
            bos=metadata.get("tokenizer.ggml.bos_token_id", -1),
            eos=metadata.get("tokenizer.ggml.eos_token_id", -1),
        )

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def digest(self) -> str:
        """sha256 over the token list, ids and kinds included: two models with the same one can draft for each other."""
        state = hashlib.sha256()
        for number, piece in enumerate(self.pieces):
            state.update(len(piece).to_bytes(4, "little") + piece + bytes([number in self.control]))
        return state.hexdigest()

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """The control tokens' spellings, longest first."""
        texts = {self.pieces[n].decode("utf-8", "replace") for n in self.control}
        return tuple(sorted(texts - {""}, key=lambda text: (-len(text), text)))

    def spell(self, token: int) -> str:
        """A token's spelling, or nothing for -1 (absent)."""
        return self.pieces[token].decode("utf-8", "replace") if 0 <= token < len(self.pieces) else ""

    def text_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of what a client sees of `ids`: control tokens are silent."""
        return b"".join(self.pieces[n] for n in ids if n not in self.control)

    def text(self, ids: Iterable[int]) -> str:
        """`text_bytes` as text; bytes that are no UTF-8 become U+FFFD."""
        return self.text_bytes(ids).decode("utf-8", "replace")

    def whole(self, ids: Iterable[int]) -> bool:
        """False if the text of `ids` ends inside a character."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(self.text_bytes(ids))
        return not decoder.getstate()[0]

    @cached_property
    def _by_bytes(self) -> dict[bytes, list[int]]:
        table: dict[bytes, list[int]] = {}
        for number, piece in enumerate(self.pieces):
            if piece and number not in self.control:
                table.setdefault(piece, []).append(number)
        return table

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_bytes), default=0)

    def id_of(self, text: bytes) -> int | None:
        """The ordinary token that stands for exactly these bytes."""
        return next(iter(self._by_bytes.get(text, ())), None)

    def segment(self, text: bytes, count: int, last: int) -> tuple[int, ...] | None:
        """`count` ids that spell exactly `text`, the last of them `last`; long pieces first. None if there are none."""
        tail = self.pieces[last] if last not in self.control else b""
        if not text.endswith(tail):
            return None
        head = self._split(text[: len(text) - len(tail)], count - 1, set())
        return None if head is None else (*head, last)

    def _split(self, text: bytes, count: int, dead: set[tuple[int, int]]) -> tuple[int, ...] | None:
        """Exact search, with the states (bytes left, tokens left) already known to lead nowhere in `dead`."""
        if not text or not count:
            return () if not text and not count else None
        if (len(text), count) in dead:
            return None
        for size in range(min(len(text) - count + 1, self._longest), 0, -1):
            for number in self._by_bytes.get(text[:size], ())[:1]:
                rest = self._split(text[size:], count - 1, dead)
                if rest is not None:
                    return (number, *rest)
        dead.add((len(text), count))
        return None
