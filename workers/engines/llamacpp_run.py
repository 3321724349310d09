"""One request on its way through llama.cpp's server."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import msgspec

from shared.errors import EngineError
from shared.wire import Timings, Usage
from workers.engines.base import EngineEvent, EngineRequest, Failed, Finished, Prefilled, Started
from workers.engines.llamacpp_http import Address, Chunk, Completion, PromptProgress, ServerError
from workers.engines.llamacpp_reader import Answer, Encoder
from workers.engines.llamacpp_server import completion_body, grammar_schema
from workers.engines.meter import Meter
from workers.engines.slots import Lease
from workers.engines.tickets import Desk, Ticket
from workers.gguf import Vocabulary

if TYPE_CHECKING:
    from collections import OrderedDict

_BAD_REQUEST: Final = 400
_REMEMBERED_SCHEMAS: Final = 256
_NEVER_JSON: Final = b"!"


class Run:
    """The life of one request. `events` yields all but the terminal one, `verdict` or `failed` is that."""

    def __init__(
        self, request: EngineRequest, ticket: Ticket, vocabulary: Vocabulary, tokenizer: Encoder, meter: Meter
    ) -> None:
        self._request = request
        self._ticket = ticket
        self._vocabulary = vocabulary
        self._meter = meter
        self._answer = Answer(request, vocabulary, tokenizer)
        self._now = asyncio.get_running_loop().time
        self._mark: float | None = None
        self._share = 0.0
        self._prefilling = False
        self._first_at: float | None = None
        self._last_at = 0.0
        self._ended_at: float | None = None
        self._cached = 0
        self._refused: Failed | None = None
        self.prompt = request.prompt + (request.resume.ids if request.resume is not None else ())

    async def events(
        self, address: Address, lease: Lease, desk: Desk, enforced: "OrderedDict[bytes, bool]"
    ) -> AsyncIterator[EngineEvent]:
        """Generate. Raises ServerError, OSError."""
        self._enter()
        try:
            yield Started()
            if (delta := self._answer.begin()) is not None:
                yield delta
            if self._answer.reason is not None or self._ticket.interrupt is not None:
                return
            if self._request.grammar is not None and not await self._holds(address, lease, enforced):
                message = "response_format: the model cannot be held to this schema"
                self._refused = Failed("bad_request", retryable=False, message=message)
                return
            stream = await Completion.open(address, self._body(lease))
            stream.closed.add_done_callback(lambda _: self._vacate(lease, desk))
            try:
                async for event in self._follow(stream):
                    yield event
            finally:
                stream.interrupt()
            if (delta := self._answer.flush()) is not None:
                yield delta
            if self._first_at is not None:
                lease.remember((*self.prompt, *self._answer.ids[len(self.prompt) - len(self._request.prompt) :]))
        finally:
            self._vacate(lease, desk)

    async def _follow(self, stream: Completion) -> AsyncIterator[EngineEvent]:
        self._ticket.wake = stream.interrupt
        if self._ticket.interrupt is not None:
            stream.interrupt()
        counters = self._meter.counters
        while self._answer.reason is None and (chunk := await stream.read()) is not None:
            counters.steps += 1
            if chunk.prompt_progress is not None and not chunk.tokens_predicted:
                yield self._progress(chunk.prompt_progress)
                continue
            self._count(chunk)
            delta = await self._answer.take(chunk)
            if delta is not None:
                yield delta

    def _progress(self, at: PromptProgress) -> Prefilled:
        self._cached = min(at.cache, len(self._request.prompt))
        if at.processed >= at.total:
            self._meter.prefill(at.processed - at.cache, at.time_ms / 1000)
        return Prefilled(at.processed, at.total, self._cached)

    def _count(self, chunk: Chunk) -> None:
        now, counters = self._now(), self._meter.counters
        if self._first_at is None:
            self._first_at = now
            self._prefilled()
            counters.prompt += len(self._request.prompt)
            counters.cached += self._cached
        elif not chunk.stop:
            self._meter.token(now - self._last_at)
        self._last_at = now

    async def _holds(self, address: Address, lease: Lease, enforced: "OrderedDict[bytes, bool]") -> bool:
        """Whether llama.cpp really applies the schema: one that it cannot compile is dropped in silence.

        Asked once per schema, for one token: with a bias that makes `!`, with which no JSON begins, all but certain,
        only a grammar in force can produce anything else.
        """
        schema = grammar_schema(self._request)
        key = msgspec.json.encode(schema)
        if key not in enforced:
            temptation = self._vocabulary.id_of(_NEVER_JSON)
            body = {
                "prompt": self.prompt[-1:],
                "n_predict": 1,
                "temperature": 0,
                "logit_bias": [[temptation, 1000.0]],
                "json_schema": schema,
                "return_tokens": True,
                "id_slot": lease.slot.index,
                "cache_prompt": False,
            }
            # Streamed, since only a stream can be broken off: a server that is being stopped waits for all others.
            stream = await Completion.open(address, {**body, "stream": True})
            self._ticket.wake = stream.interrupt
            try:
                made: list[int] = []
                while (chunk := await stream.read()) is not None:
                    made += chunk.tokens
                if self._ticket.interrupt is not None:
                    return True  # the caller looks at that first
                enforced[key] = temptation is not None and made != [temptation]
            except ServerError as error:
                if error.status != _BAD_REQUEST:
                    raise
                enforced[key] = False
            finally:
                stream.interrupt()
            if len(enforced) > _REMEMBERED_SCHEMAS:
                enforced.popitem(last=False)
        enforced.move_to_end(key)
        return enforced[key]

    def _body(self, lease: Lease) -> dict[str, object]:
        left = self._request.max_tokens - self._answer.made
        return completion_body(self._request, self.prompt, slot=lease.slot.index, reuse=lease.reuse, n_predict=left)

    def _enter(self) -> None:
        self._mark = self._meter.enter(self._now())
        self._prefilling = True
        self._meter.counters.prefilling += 1
        self._meter.counters.reserved += len(self._request.prompt) + self._request.max_tokens

    def _prefilled(self) -> None:
        if self._prefilling:
            self._prefilling = False
            self._meter.counters.prefilling -= 1

    def _vacate(self, lease: Lease, desk: Desk) -> None:
        """The engine is done, whatever the reader still has to read: slot and seat are free. Idempotent."""
        if self._mark is not None:
            self._ended_at = self._now()
            self._share = self._meter.leave(self._mark, self._ended_at)
            self._mark = None
            self._meter.counters.reserved -= len(self._request.prompt) + self._request.max_tokens
            self._prefilled()
            lease.release()
            desk.vacate(self._ticket)

    def _usage(self) -> Usage:
        return Usage(
            prompt=len(self._request.prompt),
            cached=self._cached,
            completion=self._answer.made,
            accepted=self._answer.timings.draft_n_accepted,
            proposed=self._answer.timings.draft_n,
            device_seconds=self._share,
        )

    def _timings(self) -> Timings:
        end = self._ended_at if self._ended_at is not None else self._now()
        begun = self._ticket.started_at if self._ended_at is not None else end
        first = min(self._first_at, end) if self._first_at is not None else end
        return Timings(
            queue_ms=(begun - self._ticket.queued_at) * 1000,
            prefill_ms=(first - begun) * 1000,
            decode_ms=(end - first) * 1000,
        )

    def verdict(self) -> Finished | Failed:
        """The terminal event of a request that nothing went wrong with."""
        usage = self._usage()
        if self._refused is not None:
            return self._refused
        if self._answer.reason is not None:
            return Finished(self._answer.reason, usage, self._timings())
        return self._ticket.verdict(usage, self._timings())

    def failed(self, error: EngineError) -> Finished | Failed:
        """The terminal event after an error, unless the request was to stop anyway."""
        if self._ticket.interrupt is not None:
            return self._ticket.verdict(self._usage(), self._timings())
        if isinstance(error, ServerError) and error.status == _BAD_REQUEST:
            code = "too_large" if error.kind == "exceed_context_size_error" else "bad_request"
            return Failed(code, retryable=False, message=error.message, usage=self._usage())
        return Failed("engine_fault", retryable=True, message=str(error), usage=self._usage())

    def close(self) -> None:
        """Add to the totals what the request made."""
        counters, resumed = self._meter.counters, len(self.prompt) - len(self._request.prompt)
        counters.completion += self._answer.made - resumed
        counters.accepted += self._answer.timings.draft_n_accepted
        counters.proposed += self._answer.timings.draft_n
