"""The author of records: what it writes when, that nothing waits for it, and what it does when the stream is away."""

import asyncio

import msgspec
import pytest

from gateway.services.streams import Attempt
from gateway.services.usage_writer import CHECK_S, CHECK_TOKENS, Bill, UsageWriter
from shared import wire
from shared.bus import Delivery
from shared.errors import BusError

RECORD = wire.decoder(wire.UsageRecord)


class StreamBus:
    """A bus whose stream confirms what it is told to confirm."""

    inbox, connected = "_INBOX.g1.e", True

    def __init__(self):
        self.sent, self.handler, self.fail, self.log = [], None, False, []

    async def listen(self, subject, handler):
        assert subject == "_INBOX.g1.e.u.*"
        self.handler = handler

    async def publish(self, subject, payload, *, reply):
        if self.fail:
            raise BusError("full")
        assert subject == "ef.usage.g.g1"
        self.sent.append((reply, payload))

    async def word(self, reply, body=b'{"stream":"USAGE","seq":1}', status=0):
        self.handler(Delivery(reply, body, "", status))

    async def confirm(self):
        for reply, _ in self.sent:
            await self.word(reply)

    def records(self):
        return [RECORD.decode(payload) for _, payload in self.sent]

    def kinds(self):
        return [type(record).__name__ for record in self.records()]


class Bench:
    def __init__(self):
        self.now, self.bus = 100.0, StreamBus()
        self.writer = UsageWriter("g1", "e1", self.bus, lambda: self.now)

    def bill(self, rid="r", **more):
        return Bill(
            **{
                "id": rid,
                "label": "mine",
                "tenant": "t1",
                "key": "k1",
                "streamed": True,
                "model": "m",
                "version": "1",
                **more,
            }
        )

    async def opened(self, bill, sid=1, choice=0):
        attempt = Attempt(
            sid=sid, wid="w1", wep="x", aid=f"{bill.id}.{choice}.0", model="m", choice=choice, inbox=None, payload=b"",
            headers=None, answer=asyncio.get_running_loop().create_future(),
        )  # fmt: skip
        await self.writer.opening(bill, attempt, max_tokens=50)
        attempt.accept = wire.Accept(wep="x", sid=sid, prompt_tokens=9)
        return attempt

    def ends(self, attempt, tokens, reason="stop"):
        attempt.received = tokens
        attempt.terminal = wire.End(attempt.sid, 9, reason, wire.Usage(prompt=9, completion=tokens))
        self.writer.over(attempt)

    async def later(self, seconds):
        self.now += seconds
        await self.writer.look(self.now)


@pytest.fixture
async def bench():
    bench = Bench()
    await bench.writer.open()
    return bench


async def test_an_open_goes_out_before_opening_returns_and_numbers_count_from_one(bench):
    for number in range(1, 4):
        await bench.opened(bench.bill(f"r{number}"), sid=number)
    assert [(record.n, record.gep, record.aid) for record in bench.bus.records()] == [
        (1, "e1", "r1.0.0"), (2, "e1", "r2.0.0"), (3, "e1", "r3.0.0"),
    ]  # fmt: skip
    first = bench.bus.records()[0]
    assert (first.tenant, first.key, first.wid, first.max_tokens, first.label, first.streamed) == (
        "t1",
        "k1",
        "w1",
        50,
        "mine",
        True,
    )


async def test_a_check_every_64_tokens_and_every_2_seconds_if_something_came(bench):
    bill = bench.bill()
    await bench.opened(bill)
    await bench.bus.confirm()
    bench.writer.delivered(bill, CHECK_TOKENS - 1)
    await bench.writer.send()
    assert bench.bus.kinds() == ["Open"]
    bench.writer.delivered(bill, 1)
    await bench.writer.send()
    await bench.bus.confirm()
    await bench.later(CHECK_S)
    assert bench.bus.kinds() == ["Open", "Check"], "nothing has come since"
    bench.writer.delivered(bill, 3)
    await bench.later(CHECK_S)
    checks = [record for record in bench.bus.records() if isinstance(record, wire.Check)]
    assert [(one.aid, one.prompt, one.charged) for one in checks] == [("r", 9, 64), ("r", 9, 67)]


async def test_one_close_with_all_choices_once_the_last_worker_has_spoken(bench):
    bill = bench.bill()
    attempts = [await bench.opened(bill, sid=choice + 1, choice=choice) for choice in range(2)]
    bench.ends(attempts[0], 5)
    bench.writer.closing(bill, "client_left", 0.25)
    await bench.writer.send()
    assert bench.bus.kinds() == ["Open", "Open"]
    bench.ends(attempts[1], 7, "cancelled")
    bench.writer.over(attempts[1])
    await bench.later(100.0)
    closes = [record for record in bench.bus.records() if isinstance(record, wire.Close)]
    assert {(one.aid, one.charged, one.generated, one.queue_ms, one.outcome) for one in closes} == {
        ("r", 12, 12, 250.0, "client_left")
    }
    assert len({one.n for one in closes}) == 1, "repeated as long as it is not confirmed, but the same one"
    assert len(bench.writer) == 0


async def test_a_worker_that_never_speaks_again_is_waited_for_but_not_for_ever(bench):
    bill = bench.bill()
    (await bench.opened(bill)).received = 6
    bench.writer.closing(bill, "client_left", 0.0)
    await bench.later(14.0)
    assert "Close" not in bench.bus.kinds()
    await bench.later(1.1)
    assert bench.bus.records()[-1].charged == 6


async def test_a_request_that_no_worker_was_asked_for_has_no_record(bench):
    bench.writer.closing(bench.bill(), "queue_timeout", 3.0)
    await bench.later(100.0)
    assert bench.bus.sent == []


async def test_the_half_of_an_answer_that_is_not_streamed_is_not_delivered(bench):
    bill = bench.bill(streamed=False)
    attempt = await bench.opened(bill)
    bench.writer.closing(bill, "worker_failed", 0.0)
    attempt.received, attempt.terminal = 8, wire.Fail(1, 8, "worker_lost", "", retryable=True, usage=wire.Usage())
    bench.writer.over(attempt)
    await bench.writer.send()
    close = bench.bus.records()[-1]
    assert (close.charged, close.generated, close.prompt) == (0, 8, 0)


async def test_what_is_not_confirmed_is_repeated_to_the_byte(bench):
    await bench.opened(bench.bill())
    await bench.later(2.0)
    await bench.later(2.0)
    assert len(bench.bus.sent) == 3
    assert len(set(bench.bus.sent)) == 1
    await bench.bus.confirm()
    await bench.later(2.0)
    assert len(bench.bus.sent) == 3
    assert len(bench.writer.backlog) == 0


async def test_while_the_bus_is_away_records_wait_and_no_request_notices(bench):
    bill = bench.bill()
    attempt = await bench.opened(bill)
    await bench.bus.confirm()
    bench.bus.connected = False
    bench.writer.delivered(bill, 70)
    bench.writer.closing(bill, "ok", 0.0)
    bench.ends(attempt, 71)
    await bench.writer.send()
    await bench.later(60.0)
    assert bench.bus.kinds() == ["Open"]
    bench.bus.connected = True
    bench.writer.reconnected()
    await bench.later(0.1)
    assert bench.bus.kinds() == ["Open", "Close"], "its check says nothing more that the close does not"
    assert bench.bus.records()[-1].charged == 71


async def test_a_full_client_buffer_does_not_reach_the_request(bench):
    bench.bus.fail = True
    await bench.opened(bench.bill())
    bench.bus.fail = False
    await bench.later(2.0)
    assert bench.bus.kinds() == ["Open"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 503),
        (b'{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"USAGE","seq":0}', 0),
    ],
)
async def test_a_stream_that_is_missing_or_refuses_is_tried_with_one_record_at_a_time(bench, body, status):
    for number in range(1, 5):
        await bench.opened(bench.bill(f"r{number}"), sid=number)
    await bench.bus.word(bench.bus.sent[0][0], body, status)
    bench.bus.sent.clear()
    await bench.later(2.0)
    await bench.later(2.0)
    assert [record.n for record in bench.bus.records()] == [1, 2]
    await bench.bus.confirm()
    bench.bus.sent.clear()
    await bench.later(2.0)
    assert [record.n for record in bench.bus.records()] == [3, 4]


async def test_a_word_that_is_none_confirms_nothing(bench):
    await bench.opened(bench.bill())
    with pytest.raises(msgspec.DecodeError):
        await bench.bus.word(bench.bus.sent[0][0], b"\x81not json")
    await bench.bus.word("_INBOX.g1.e.u.other")
    assert len(bench.writer.backlog) == 1


async def test_the_end_of_the_process_closes_what_is_open_at_what_was_delivered(bench):
    bill = bench.bill()
    attempt = await bench.opened(bill)
    attempt.received = 9
    bench.writer.delivered(bill, 5)
    bench.bus.connected = False  # nothing is to be waited for
    await bench.writer.close()
    bench.bus.connected = True
    bench.writer.reconnected()
    await bench.later(0.0)
    close = bench.bus.records()[-1]
    assert (close.charged, close.generated, close.outcome) == (5, 9, "shutdown")


async def test_the_end_of_the_process_waits_for_last_words_and_confirmations(bench):
    bill = bench.bill()
    attempt = await bench.opened(bill)
    bench.writer.closing(bill, "client_left", 0.0)
    ending = asyncio.create_task(bench.writer.close())
    await asyncio.sleep(0)
    assert "Close" not in bench.bus.kinds()
    bench.ends(attempt, 7, "cancelled")
    while "Close" not in bench.bus.kinds():
        await asyncio.sleep(0)
    assert not ending.done()
    await bench.bus.confirm()
    await ending
    assert bench.bus.records()[-1].charged == 7
    assert len(bench.writer.backlog) == 0
