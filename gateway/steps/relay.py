"""Step 7: from the inbox to the client, streamed or as one answer.

A piece that comes while the client's socket takes more goes straight through. What had to wait in the inbox goes out
in one send, each event still its own `data:` line. While nothing comes, comments keep the connection alive.
"""

import asyncio

from gateway.context import Exchange, Headers, House, Passage
from gateway.encode import Choice, Finish, Stream, error_event, merge, whole
from gateway.outcome import from_fail
from gateway.services.inbox import Item
from shared import telemetry
from shared.errors import HttpError
from shared.wire import End, Event, Fail, Text, TokenLogprob, Usage

_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def answer_headers(house: House, passage: Passage) -> Headers:
    """What every good answer carries."""
    return [
        *(house.quotas.headers(passage.reservation) if passage.reservation is not None else ()),
        (b"x-request-id", passage.arrival.request_id.encode()),
        (b"x-evenflow-version", passage.pool[1].encode("latin-1", "replace")),
    ]


async def stream(house: House, exchange: Exchange, passage: Passage) -> None:
    """Server-sent events. Raises HttpError; once the status is out, `broken` tells the client of it."""
    ask, arrival = passage.ask, passage.arrival
    events = Stream(ask.kind, arrival.request_id, ask.model, arrival.created, ask.include_usage)
    with arrival.trace.step(telemetry.SPAN_RELAY) as passage.relaying:
        await _headers_due(house, exchange, passage)
        await _events(house, exchange, passage, events)


async def broken(exchange: Exchange, error: HttpError) -> None:
    """The last event of a stream that did not go well. No `[DONE]` follows: it would hide the error from clients."""
    await exchange.finish(error_event(error, retryable=error.retryable))


async def _headers_due(house: House, exchange: Exchange, passage: Passage) -> None:
    """Hold the status until a worker has accepted, but not for ever: from then on errors come in the stream."""
    inbox = passage.inbox
    try:
        async with asyncio.timeout(house.settings.limits.headers_after_s):
            await inbox.ready()
    except TimeoutError:
        pass
    await exchange.start(200, [*_STREAM_HEADERS, *answer_headers(house, passage)])


async def _events(house: House, exchange: Exchange, passage: Passage, events: Stream) -> None:
    inbox, writer = passage.inbox, _Writer(house, exchange, passage, events)
    inbox.straight = writer.straight
    while len(writer.usages) < passage.ask.n:
        items = await inbox.take()
        if items:
            await writer.write(items)
            house.streams.taken(inbox)
        else:
            await exchange.send(events.comment(_waiting(house, passage)))
    usage = events.usage(merge(list(writer.usages.values())))
    await exchange.finish(bytes(writer.out) + usage + events.done())


class _Writer:
    """From events to the client's socket. `usages` has those of the choices that are complete, `out` what is unsent."""

    def __init__(self, house: House, exchange: Exchange, passage: Passage, events: Stream) -> None:
        self.usages: dict[int, Usage] = {}
        self.out = bytearray()
        self._tokens = 0
        self._house = house
        self._exchange = exchange
        self._passage = passage
        self._events = events

    def straight(self, choice: int, batch: tuple[Event, ...]) -> bool:
        """Text that comes while the socket takes more goes out in the bus's own turn; all else waits for the task."""
        if type(batch[-1]) is not Text or not self._exchange.writable:
            return False
        self._encode(choice, batch)
        if self.out:
            self._exchange.send_now(bytes(self.out))
        self._sent()
        return True

    async def write(self, items: list[Item]) -> None:
        """All of it in one send, but for what ends the last choice: that stays in `out`. Raises what a Fail means."""
        for choice, batch in items:
            self._encode(choice, batch)
            if isinstance(failure := batch[-1], Fail):
                await self._flush()
                raise from_fail(failure, self._passage.ask)
        if len(self.usages) < self._passage.ask.n:
            await self._flush()

    def _encode(self, choice: int, batch: tuple[Event, ...]) -> None:
        for event in batch:
            if type(event) is Text:
                self._tokens += len(event.ids)
                if event.text or event.logprobs is not None:
                    if self._passage.first_token_at is None:
                        _first_token(self._passage)
                    self.out += self._events.role(choice)
                    self.out += self._events.text(choice, event.text, event.logprobs)
            elif type(event) is End:
                self.usages[choice] = event.usage
                self.out += self._events.role(choice) + self._events.finish(choice, _finish(event))

    async def _flush(self) -> None:
        if self.out:
            await self._exchange.send(bytes(self.out))
        self._sent()

    def _sent(self) -> None:
        self._house.usage.delivered(self._passage.bill, self._tokens)
        self.out.clear()
        self._tokens = 0


def _first_token(passage: Passage) -> None:
    passage.first_token_at = asyncio.get_running_loop().time()
    passage.relaying.event(telemetry.EVENT_FIRST_TOKEN)


def _waiting(house: House, passage: Passage) -> str:
    if passage.attempts:
        return "working"
    return f"queued, predicted wait {house.turnstile.line.predicted_wait(passage.pool):.0f} s"


def _finish(event: End) -> Finish:
    return "length" if event.reason == "length" else "stop"


async def collect(house: House, exchange: Exchange, passage: Passage) -> None:
    """One JSON answer when every choice is complete."""
    with passage.arrival.trace.step(telemetry.SPAN_RELAY) as passage.relaying:
        await _collect(house, exchange, passage)


async def _collect(house: House, exchange: Exchange, passage: Passage) -> None:
    ask, inbox = passage.ask, passage.inbox
    texts: list[list[str]] = [[] for _ in range(ask.n)]
    logprobs: list[list[TokenLogprob]] = [[] for _ in range(ask.n)]
    ends: dict[int, End] = {}

    def straight(choice: int, batch: tuple[Event, ...]) -> bool:
        if type(batch[-1]) is not Text:
            return False
        _gather(passage, [(choice, batch)], texts, logprobs, ends)
        return True

    inbox.straight = straight
    while len(ends) < ask.n:
        items = await inbox.take()
        house.streams.taken(inbox)
        _gather(passage, items, texts, logprobs, ends)
    body = whole(
        ask.kind,
        passage.arrival.request_id,
        ask.model,
        passage.arrival.created,
        [
            Choice(i, "".join(texts[i]), logprobs[i] if ask.logprobs is not None else None, _finish(ends[i]))
            for i in range(ask.n)
        ],
        merge([ends[i].usage for i in range(ask.n)]),
    )
    await exchange.start(
        200,
        [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *answer_headers(house, passage),
        ],
    )
    await exchange.finish(body)


def _gather(
    passage: Passage,
    items: list[Item],
    texts: list[list[str]],
    logprobs: list[list[TokenLogprob]],
    ends: dict[int, End],
) -> None:
    for choice, batch in items:
        for event in batch:
            if isinstance(event, Text):
                if passage.first_token_at is None:
                    _first_token(passage)
                texts[choice].append(event.text)
                logprobs[choice].extend(event.logprobs or ())
            elif isinstance(event, End):
                ends[choice] = event
            elif isinstance(event, Fail):
                raise from_fail(event, passage.ask)
