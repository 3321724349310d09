"""Step 6: from the inbox to the client, streamed or as one answer.

Every piece that waits in the inbox goes out in one send, each event still its own `data:` line. While nothing comes,
comments keep the connection alive.
"""

import asyncio

from gateway.context import Exchange, Headers, House, Passage
from gateway.encode import Choice, Finish, Stream, error_event, merge, whole
from gateway.outcome import from_fail
from gateway.services.inbox import Item
from shared import telemetry
from shared.errors import HttpError
from shared.wire import End, Fail, Text, TokenLogprob, Usage

_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def answer_headers(passage: Passage) -> Headers:
    """What every good answer carries."""
    return [
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
    await exchange.start(200, [*_STREAM_HEADERS, *answer_headers(passage)])


async def _events(house: House, exchange: Exchange, passage: Passage, events: Stream) -> None:
    ask, inbox = passage.ask, passage.inbox
    usages: dict[int, Usage] = {}
    while len(usages) < ask.n:
        items = await inbox.take()
        if not items:
            await exchange.send(events.comment(_waiting(house, passage)))
            continue
        out, tokens = bytearray(), 0
        for choice, batch in items:
            for event in batch:
                if isinstance(event, Text):
                    tokens += len(event.ids)
                    out += _text(passage, events, choice, event)
                elif isinstance(event, End):
                    usages[choice] = event.usage
                    out += events.role(choice) + events.finish(choice, _finish(event))
                elif isinstance(event, Fail):
                    await _flush(exchange, out)
                    house.usage.delivered(passage.bill, tokens)
                    raise from_fail(event, ask)
        if len(usages) < ask.n:
            await _flush(exchange, out)
            house.usage.delivered(passage.bill, tokens)
        house.streams.taken(inbox)
    await exchange.finish(bytes(out) + events.usage(merge(list(usages.values()))) + events.done())


def _text(passage: Passage, events: Stream, choice: int, event: Text) -> bytes:
    if not event.text and event.logprobs is None:
        return b""
    if passage.first_token_at is None:
        _first_token(passage)
    return events.role(choice) + events.text(choice, event.text, event.logprobs)


def _first_token(passage: Passage) -> None:
    passage.first_token_at = asyncio.get_running_loop().time()
    passage.relaying.event(telemetry.EVENT_FIRST_TOKEN)


async def _flush(exchange: Exchange, out: bytearray) -> None:
    if out:
        await exchange.send(bytes(out))


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
            *answer_headers(passage),
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
