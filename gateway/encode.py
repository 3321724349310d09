r"""Bytes out: server-sent events and whole answers, in OpenAI's shapes to the byte.

A `Stream` lives as long as its request. All that is constant in a chunk is encoded once, so that the hot path (`text`)
encodes the text and joins three pieces. Events are `data: {json}\n\n`, nothing else; `data: [DONE]\n\n` ends.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from gateway.outcome import error_object
from shared.wire import InputKind, TokenLogprob, Usage

_json = msgspec.json.Encoder().encode

DONE: Final = b"data: [DONE]\n\n"
LOWEST: Final = -9999.0  # what OpenAI reports for a token that was all but impossible; JSON has no -Infinity

Finish = Literal["stop", "length"]


class Choice(msgspec.Struct, frozen=True):
    """One finished choice of a whole answer."""

    index: int
    text: str
    logprobs: Sequence[TokenLogprob] | None
    finish_reason: Finish


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model as `/v1/models` shows it; `created` in Unix seconds."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "evenflow"


class Stream:
    """The events of one streamed request: `role`, then `text`s, then `finish`, per choice; `usage` and `done` last.

    `kind` is the Ask's (text and ids look the same), `created` is in Unix seconds. With `include_usage` every chunk
    carries `"usage": null`, as OpenAI's do, and `usage` gives the one chunk without choices; without, it gives nothing.
    """

    __slots__ = ("_after", "_before", "_chat", "_head", "_offsets", "_roles", "_tail", "_usage_due")

    def __init__(
        self,
        kind: InputKind,
        request_id: str,
        model: str,
        created: int,
        include_usage: bool,
        *,
        system_fingerprint: str | None = None,
    ) -> None:
        self._chat = kind == "chat"
        head = _json(
            {
                "id": _answer_id(kind, request_id),
                "object": "chat.completion.chunk" if self._chat else "text_completion",
                "created": created,
                "model": model,
                "system_fingerprint": system_fingerprint,
            }
        )
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._usage_due = include_usage
        self._after = (b"}" if self._chat else b"") + b',"logprobs":null,"finish_reason":null}' + self._tail
        self._before: dict[int, bytes] = {}
        self._offsets: dict[int, int] = {}
        self._roles: set[int] = set()

    def role(self, index: int) -> bytes:
        """The chunk that opens a choice; empty when it was sent before, and for completions, which have none."""
        if not self._chat or index in self._roles:
            return b""
        self._roles.add(index)
        return self._event(index, b'"delta":{"role":"assistant","content":""}')

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None = None) -> bytes:
        """A piece of answer."""
        before = self._before.get(index)
        if before is None:
            before = self._before[index] = self._opening(index)
        if logprobs is None:
            return before + _json(text) + self._after
        piece = b'"delta":{"content":' + _json(text) + b"}" if self._chat else b'"text":' + _json(text)
        return self._event(index, piece, logprobs=_json(self._logprobs(index, logprobs)))

    def finish(self, index: int, reason: Finish) -> bytes:
        """The chunk that ends a choice."""
        piece = b'"delta":{}' if self._chat else b'"text":""'
        return self._event(index, piece, finish=_json(_finish(reason)))

    def usage(self, usage: Usage, *, resumed: bool = False) -> bytes:
        """The usage chunk, if it was asked for and has not been sent; `resumed` adds `"evenflow_resumed":true`."""
        if not self._usage_due:
            return b""
        self._usage_due = False
        extra = b',"evenflow_resumed":true' if resumed else b""
        return self._head + b'],"usage":' + _json(usage_object(usage)) + extra + b"}\n\n"

    def done(self) -> bytes:
        """The end of a stream that went well."""
        return DONE

    @staticmethod
    def error(exc: BaseException, retryable: bool) -> bytes:
        """The end of a stream that did not go well: see `error_event`."""
        return error_event(exc, retryable=retryable)

    @staticmethod
    def comment(text: str) -> bytes:
        """A line that clients skip; keeps connections alive."""
        return b": " + " ".join(text.split()).encode(errors="replace") + b"\n\n"

    def _opening(self, index: int) -> bytes:
        piece = b'"delta":{"content":' if self._chat else b'"text":'
        return self._head + b'{"index":%d,' % index + piece

    def _event(self, index: int, piece: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
        rest = b',"logprobs":' + logprobs + b',"finish_reason":' + finish + b"}"
        return self._head + b'{"index":%d,' % index + piece + rest + self._tail

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        if self._chat:
            return _chat_logprobs(tokens)
        start = self._offsets.get(index, 0)
        self._offsets[index] = start + sum(len(token.token) for token in tokens)
        return _text_logprobs(tokens, start)


def error_event(exc: BaseException, *, retryable: bool) -> bytes:
    """An error in mid-stream: no `[DONE]` may follow, it would hide the error from clients."""
    return b"data: " + _json({"error": {**error_object(exc), "retryable": retryable}}) + b"\n\n"


def whole(  # noqa: PLR0917 -- the order is that of the JSON
    kind: InputKind,
    request_id: str,
    model: str,
    created: int,
    choices: Iterable[Choice],
    usage: Usage,
    *,
    system_fingerprint: str | None = None,
) -> bytes:
    """A whole answer as JSON; `usage` is that of the request (see `merge`)."""
    shape = _chat_choice if kind == "chat" else _text_choice
    return _json(
        {
            "id": _answer_id(kind, request_id),
            "object": "chat.completion" if kind == "chat" else "text_completion",
            "created": created,
            "model": model,
            "system_fingerprint": system_fingerprint,
            "choices": [shape(choice) for choice in choices],
            "usage": usage_object(usage),
        }
    )


def model_card(card: ModelCard) -> bytes:
    """`GET /v1/models/{id}`."""
    return _json(card)


def model_list(cards: Iterable[ModelCard]) -> bytes:
    """`GET /v1/models`."""
    return _json({"object": "list", "data": list(cards)})


def merge(usages: Sequence[Usage]) -> Usage:
    """Usage of a request from that of its choices: the prompt counts once, what was generated adds up.

    Choices that started later find the prompt in the cache; only what every choice found there was never computed.
    """
    if not usages:
        return Usage()
    return Usage(
        prompt=max(usage.prompt for usage in usages),
        cached=min(usage.cached for usage in usages),
        completion=sum(usage.completion for usage in usages),
        accepted=sum(usage.accepted for usage in usages),
        proposed=sum(usage.proposed for usage in usages),
        device_seconds=sum(usage.device_seconds for usage in usages),
    )


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object, in tokens. Draft tokens stand where OpenAI counts predicted ones."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted,
            "rejected_prediction_tokens": max(0, usage.proposed - usage.accepted),
        },
    }


def _answer_id(kind: InputKind, request_id: str) -> str:
    return ("chatcmpl-" if kind == "chat" else "cmpl-") + request_id


def _finish(reason: str) -> str:
    """OpenAI's word for how it ended: the same two. A cancelled request has nobody to read a third."""
    if reason not in ("stop", "length"):
        raise ValueError(f"no client is told of finish reason {reason!r}")
    return reason


def _chat_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": None if choice.logprobs is None else _chat_logprobs(choice.logprobs),
        "finish_reason": _finish(choice.finish_reason),
    }


def _text_choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": None if choice.logprobs is None else _text_logprobs(choice.logprobs, 0),
        "finish_reason": _finish(choice.finish_reason),
    }


def _chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    content = [{**_token(token), "top_logprobs": [_token(other) for other in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _token(token: Any) -> dict[str, Any]:
    return {"token": token.token, "logprob": _finite(token.logprob), "bytes": list(token.bytes)}


def _text_logprobs(tokens: Sequence[TokenLogprob], start: int) -> dict[str, Any]:
    """The older shape: parallel lists. Offsets are in characters from the start of the choice's text."""
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [{other.token: _finite(other.logprob) for other in token.top} for token in tokens],
        "text_offset": offsets,
    }


def _finite(logprob: float) -> float:
    return max(LOWEST, min(0.0, logprob)) if logprob == logprob else LOWEST  # noqa: PLR0124 -- NaN differs from itself
