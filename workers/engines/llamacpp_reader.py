"""From the server's chunks to deltas: every id accounted for, stop strings cut, log probabilities mapped.

The server says nothing while a character is incomplete; then one chunk carries the whole character and only the last of
its ids, and `tokens_predicted` jumps. The others are recovered from the character's bytes:

1. the tokenizer's own ids for that text, if they are as many as were produced and end in the known one;
2. else an exact search in the vocabulary for that many ids spelling the same bytes, the last one known;
3. else (the bytes were no UTF-8) the known id alone: the count stays right, the ids are incomplete.
"""

from typing import Protocol

from shared.wire import FinishReason, TokenLogprob, TopLogprob
from workers.engines.base import Delta, EngineRequest
from workers.engines.llamacpp_http import Alternative, Chunk, Probability, ServerTimings
from workers.engines.output import Output
from workers.gguf import Vocabulary


class Encoder(Protocol):
    """What is needed of a tokenizer here."""

    async def encode(self, text: str, *, special: bool) -> list[int]:
        """See `Tokenizer`."""
        ...


class Answer:
    """One answer as it grows. `made` counts tokens, those of a resume included; `reason` is set once it has ended."""

    def __init__(self, request: EngineRequest, vocabulary: Vocabulary, tokenizer: Encoder) -> None:
        self._request = request
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._output = Output(request)
        self._seen = 0
        resumed = request.resume.ids if request.resume is not None else ()
        self.ids: list[int] = list(resumed)
        self.made = len(resumed)
        self.reason: FinishReason | None = None
        self.timings = ServerTimings()

    def begin(self) -> Delta | None:
        """Take in the tokens of a resume: their text that is still due, and whether they end the answer already."""
        if self._request.resume is None:
            return None
        text = self._output.push(self._vocabulary.text(self.ids))
        ends = {*self._request.stop_ids, self._vocabulary.eos}
        if self._output.stopped or (self.ids and self.ids[-1] in ends):
            self.reason = "stop"
        elif self.made >= self._request.max_tokens:
            self.reason = "length"
        return Delta(text) if text else None

    async def take(self, chunk: Chunk) -> Delta | None:
        """The delta of one chunk that carries tokens; None if it carries nothing to tell."""
        if chunk.timings is not None:
            self.timings = chunk.timings
        produced = chunk.tokens_predicted - self._seen
        self._seen = chunk.tokens_predicted
        self.made += produced
        if chunk.stop:
            self.reason = "stop" if chunk.stop_type in ("eos", "word") else "length"
            return None
        ids = tuple(chunk.tokens)
        if produced > len(ids) and ids:
            ids = await self._recover(chunk.content, produced, ids[-1])
        self.ids += ids
        text = chunk.content
        if self._request.stop_ids and not set(ids).isdisjoint(self._request.stop_ids):
            text, self.reason = "", "stop"
        shown = self._output.push(text)
        if self._output.stopped:
            self.reason = "stop"
        return Delta(shown, ids, self._logprobs(chunk.completion_probabilities))

    def flush(self) -> Delta | None:
        """What was held back as a possible stop string."""
        text = self._output.flush()
        return Delta(text) if text else None

    async def _recover(self, text: str, count: int, last: int) -> tuple[int, ...]:
        own = await self._tokenizer.encode(text, special=False)
        if len(own) == count and own[-1] == last:
            return tuple(own)
        return self._vocabulary.segment(text.encode(), count, last) or (last,)

    def _logprobs(self, given: list[Probability]) -> tuple[TokenLogprob, ...] | None:
        wanted = self._request.top_logprobs
        if wanted is None:
            return None
        return tuple(
            TokenLogprob(
                id=one.id,
                token=one.token,
                bytes=bytes(one.bytes),
                logprob=one.logprob,
                top=tuple(_top(other) for other in one.top_logprobs[:wanted]),
            )
            for one in given
        )


def _top(one: Alternative) -> TopLogprob:
    return TopLogprob(id=one.id, token=one.token, bytes=bytes(one.bytes), logprob=one.logprob)
