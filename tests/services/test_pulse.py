"""What runs is looked at once a second: nothing is lost between two looks, nothing counted twice."""

import asyncio
from types import SimpleNamespace

from gateway.core.fleet import Fleet
from gateway.core.line import Line, Ticket
from gateway.services.pulse import PulseWatch


class Request:
    """What a passage shows."""

    def __init__(self, *received):
        self.attempts = [SimpleNamespace(received=count) for count in received]
        self.first_token_at = None


class Desk:
    def __init__(self):
        self.now = 100.5
        self.line = Line(10, 10)
        self.watch = PulseWatch(Fleet(), self.line, lambda: self.now, lambda: self.now + 1_000_000)

    def second(self, count=1):
        self.now += count
        self.watch.look(self.now)
        return self.watch.pulse.figures


def test_tokens_are_counted_in_the_second_they_came_in():
    desk, request = Desk(), Request(0, 0)
    desk.watch.begun(request, "t1", "acme", desk.now)
    request.attempts[0].received = 10
    request.attempts[1].received = 5
    assert (desk.second().tokens, desk.second().tokens) == (15, 0)
    request.attempts[0].received = 12
    desk.watch.finished(request, "ok")
    figures = desk.second()
    assert (figures.tokens, figures.in_flight) == (2, 0)
    tenant = desk.watch.pulse.tenants["t1"]
    assert tenant.tokens.series(desk.watch.pulse.second)[-3:] == [15, 0, 2]
    assert tenant.in_flight.series(desk.watch.pulse.second)[-3:] == [1, 1, 0]


def test_a_request_shorter_than_a_second_is_seen():
    desk, request = Desk(), Request(7)
    desk.watch.begun(request, "t1", "acme", desk.now)
    request.first_token_at = desk.now + 0.25
    desk.watch.finished(request, "ok")
    figures = desk.second()
    assert (figures.tokens, figures.ttft_p50, figures.ttft_p95) == (7, 0.25, 0.25)


def test_a_first_token_counts_once():
    desk, request = Desk(), Request(1)
    desk.watch.begun(request, "t1", "acme", desk.now)
    request.first_token_at = desk.now + 0.5
    desk.second()
    desk.second()
    desk.watch.finished(request, "ok")
    assert len(desk.watch.pulse._waits) == 1


def test_who_was_turned_away_and_whom_we_failed():
    desk = Desk()
    for outcome in ("tokens", "insufficient_quota", "no_worker", "ok", "invalid_value"):
        request = Request()
        desk.watch.begun(request, "t1", "acme", desk.now)
        desk.watch.finished(request, outcome)
    desk.watch.finished(None, "draining")
    figures = desk.second()
    assert (figures.limited, figures.failed) == (2, 2)
    assert desk.watch.pulse.tenants["t1"].limited.total == 2
    assert not desk.watch._running


def test_a_late_look_shows_gaps_and_no_peak():
    desk, request = Desk(), Request(0)
    desk.watch.begun(request, "t1", "acme", desk.now)
    desk.second()
    request.attempts[0].received = 40
    assert desk.second(4).tokens == 10
    assert desk.watch.pulse.tracks["tokens"].series(desk.watch.pulse.second)[-5:] == [0, None, None, None, 10]


def test_two_looks_in_one_second_lose_nothing():
    desk, request = Desk(), Request(0)
    desk.watch.begun(request, "t1", "acme", desk.now)
    desk.second()
    request.attempts[0].received = 3
    desk.second(0.1)
    assert desk.second(0.9).tokens == 3


def test_the_line_is_in_the_figures():
    desk = Desk()
    assert desk.second().wait_s == 0
    desk.line.join(Ticket(("m", "1"), "t1", 0.0))
    figures = desk.second()
    assert (figures.queued, figures.wait_s) == (1, desk.line.predicted_wait(("m", "1")))


def test_seconds_have_times_of_day():
    desk = Desk()
    assert desk.watch.time_of(100) == 1_000_100


async def test_it_looks_every_second_and_wakes_who_waits():
    loop = asyncio.get_running_loop()
    watch = PulseWatch(Fleet(), Line(1, 1), loop.time, loop.time)
    looked = watch.looked
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(30):
        await looked.wait()
    assert watch.pulse.second > 0
    assert watch.looked is not looked
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
