"""The gateway's rules, one by one."""

from itertools import pairwise

import pytest

from shared import protocol as p
from shared.errors import ProtocolError
from shared.wire import Accept, Cancel, Credit, End, Fail, Frame, Nack, Note, Prefill, Text, Usage

T = p.Timing()
W = "w1"
DONE = Usage(prompt=7, completion=2)


@pytest.fixture
def end():
    end = p.GatewayEnd("g1", "gep", first_sid=10)
    end.announced(0.0, W, "wep")
    return end


def frame(fseq, *events, wep="wep", gep="gep"):
    return Frame(wep=wep, gep=gep, fseq=fseq, events=events)


def text(sid, seq, ids=(1,)):
    return Text(sid, seq, f"t{seq}", ids)


def accept(sid, wep="wep"):
    return Accept(wep=wep, sid=sid, prompt_tokens=7, cached_tokens=2)


def nack(sid, code="busy"):
    return Nack(wep="wep", sid=sid, code=code, message="no")


def run_to(end, until):
    """Let time pass, waking as asked; what was to be done, with the time of each."""
    done = []
    while (at := end.next_wake()) is not None and at <= until:
        end.tick(at)
        done += [(round(at, 6), i) for i in end.instructions()]
    return done


def of(kind, done):
    return [(at, i) for at, i in done if isinstance(i, kind)]


def take(end, kind):
    return [i for i in end.instructions() if isinstance(i, kind)]


def started(end, now=0.0, count=1):
    sids = [end.open(now, W, 0) for _ in range(count)]
    for sid in sids:
        end.replied(now, W, sid, accept(sid))
    end.instructions()
    return sids if count > 1 else sids[0]


class TestAccept:
    def test_sids_count_up_and_are_live_from_the_start(self, end):
        assert [end.open(0.0, W, 0), end.open(0.0, W, 0)] == [10, 11]
        assert end.live(10)
        assert not end.live(12)
        assert end.open_count() == end.open_count(W) == 2
        assert end.open_count("other") == 0

    def test_reply_is_reported_once(self, end):
        sid = end.open(0.0, W, 0)
        end.replied(0.1, W, sid, accept(sid))
        end.replied(0.2, W, sid, accept(sid))
        assert take(end, p.Accepted) == [p.Accepted(sid, accept(sid))]

    def test_nack_ends_the_stream(self, end):
        sid = end.open(0.0, W, 0)
        end.replied(0.1, W, sid, nack(sid))
        assert end.instructions() == [p.Refused(sid, nack(sid))]
        assert not end.live(sid)
        assert run_to(end, 9.0) == []
        assert end.next_wake() is None

    def test_deadline_grows_with_the_job_and_comes_twice(self, end):
        sid = end.open(0.0, W, 100 * 1024)
        done = of((p.ResendJob, p.Unanswered, p.SendCancel), run_to(end, 0.75))
        assert done == [
            (0.35, p.ResendJob(W, sid)),
            (0.7, p.Unanswered(sid)),
            (0.7, p.SendCancel(W, Cancel(gep="gep", sid=sid, reason="unanswered"))),
        ]
        assert not end.live(sid)

    def test_after_unanswered_nothing_is_delivered(self, end):
        sid = end.open(0.0, W, 0)
        run_to(end, 0.6)
        end.replied(0.6, W, sid, accept(sid))
        end.frame(0.6, W, frame(1, text(sid, 0), End(sid, 1, "cancelled", DONE)), 50)
        assert not take(end, (p.Deliver, p.Accepted))
        assert not of(p.SendCancel, run_to(end, 9.0))

    @pytest.mark.parametrize("seq", [0, 3])
    def test_any_frame_counts_as_accept(self, end, seq):
        sid = end.open(0.0, W, 0)
        end.frame(0.1, W, frame(2, text(sid, seq)), 50)
        for at in (0.5, 1.0, 1.5):
            end.heard(at, W)
            assert not of((p.ResendJob, p.Unanswered), run_to(end, at))
        end.replied(1.5, W, sid, accept(sid))
        assert take(end, p.Accepted) == [p.Accepted(sid, accept(sid))]

    def test_a_reply_for_another_stream_is_an_error(self, end):
        sid = end.open(0.0, W, 0)
        with pytest.raises(ProtocolError):
            end.replied(0.1, W, sid, accept(sid + 1))
        with pytest.raises(ProtocolError):
            end.replied(0.1, W, sid, Accept(wep="wep", sid=sid, prompt_tokens=-1))
        assert end.live(sid)

    def test_late_accept_of_a_stream_that_is_over_is_cancelled(self, end):
        sid = end.open(0.0, W, 0)
        end.worker_gone(0.1, W, "dead")
        end.instructions()
        end.replied(0.2, W, sid, accept(sid))
        assert take(end, p.SendCancel) == [p.SendCancel(W, Cancel(gep="gep", sid=sid, reason="unknown"))]


class TestDelivery:
    def test_one_deliver_per_stream_and_frame(self, end):
        a, b = started(end, count=2)
        end.frame(0.1, W, frame(1, text(a, 0), text(b, 0), text(a, 1)), 90)
        assert end.instructions() == [p.Deliver(a, (text(a, 0), text(a, 1))), p.Deliver(b, (text(b, 0),))]

    def test_terminal_is_last_and_acknowledged_at_once(self, end):
        sid = started(end)
        end.frame(0.1, W, frame(1, text(sid, 0), End(sid, 1, "stop", DONE), text(sid, 2)), 90)
        deliver, credit = end.instructions()
        assert deliver == p.Deliver(sid, (text(sid, 0), End(sid, 1, "stop", DONE)))
        assert credit.credit == Credit(
            gep="gep", wep="wep", ack=1, allow_fseq=513, allow_bytes=T.window_bytes, open=(), ended=(sid,)
        )
        assert not end.live(sid)

    def test_a_burst_of_terminals_shares_credits(self, end):
        sids = started(end, count=20)
        for k, sid in enumerate(sids):
            end.frame(1.0 + k * 0.001, W, frame(k + 1, End(sid, 0, "stop", DONE)), 50)
        done = [(0, i) for i in end.instructions()] + run_to(end, 1.05)
        given = [i.credit for _, i in of(p.SendCredit, done)]
        assert 2 <= len(given) <= 4
        assert {sid for credit in given for sid in credit.ended} == set(sids)

    def test_duplicate_frames_and_events_are_dropped(self, end):
        sid = started(end)
        end.frame(0.1, W, frame(1, text(sid, 0)), 50)
        end.frame(0.1, W, frame(1, text(sid, 0)), 50)
        end.frame(0.1, W, frame(2, text(sid, 0), text(sid, 1)), 50)
        assert take(end, p.Deliver) == [p.Deliver(sid, (text(sid, 0),)), p.Deliver(sid, (text(sid, 1),))]
        assert (end.counters.frames_duplicate, end.counters.duplicates_dropped) == (1, 1)

    def test_a_hole_asks_again_and_is_acked_only_when_every_stream_answered(self, end):
        a, b = started(end, count=2)
        end.frame(0.1, W, frame(1, text(a, 0)), 50)
        end.instructions()
        end.frame(0.1, W, frame(3, text(a, 2)), 50)
        (credit,) = [i.credit for i in end.instructions()]
        assert (credit.ack, credit.resume) == (1, {a: 1, b: 0})
        end.frame(0.15, W, frame(4, Note(a, -1, "resumed"), text(a, 1), text(a, 2)), 50)
        assert end.instructions() == [p.Deliver(a, (text(a, 1), text(a, 2)))]
        assert of(p.SendCredit, run_to(end, 0.35))[-1][1].credit.ack == 1
        end.frame(0.36, W, frame(5, Note(b, -1, "resumed")), 50)
        assert of(p.SendCredit, run_to(end, 0.58))[-1][1].credit.ack == 5

    def test_a_loss_within_the_replay_is_asked_for_again(self, end):
        sid = started(end)
        end.frame(0.1, W, frame(2, text(sid, 1)), 50)
        end.instructions()
        end.frame(0.15, W, frame(3, Note(sid, -1, "resumed"), text(sid, 0)), 50)
        end.instructions()
        end.frame(0.16, W, frame(5, text(sid, 2)), 50)
        (credit,) = [i.credit for i in take(end, p.SendCredit)]
        assert (credit.ack, credit.resume) == (3, {sid: 1})

    def test_resume_never_names_an_unaccepted_stream_and_the_hole_waits_for_it(self, end):
        a = started(end)
        new = end.open(0.05, W, 0)
        end.frame(0.1, W, frame(2, text(a, 1)), 50)
        assert take(end, p.SendCredit)[0].credit.resume == {a: 0}
        end.frame(0.12, W, frame(3, Note(a, -1, "resumed"), text(a, 0), text(a, 1)), 50)
        end.replied(0.13, W, new, accept(new))
        given = [i.credit for _, i in of(p.SendCredit, run_to(end, 0.2))]
        assert (given[0].ack, given[0].resume) == (0, {new: 0})

    def test_a_stream_opened_after_the_loss_does_not_hold_the_ack_back(self, end):
        a = started(end)
        end.frame(0.1, W, frame(2, text(a, 1)), 50)
        end.open(0.11, W, 0)
        end.instructions()
        end.frame(0.12, W, frame(3, Note(a, -1, "resumed"), text(a, 0), text(a, 1)), 50)
        assert of(p.SendCredit, run_to(end, 0.31))[0][1].credit.ack == 3

    def test_silence_asks_again_and_backs_off(self, end):
        sid = started(end)
        asked = []
        for k in range(16):
            end.heard(k * 0.5, W)
            asked += [at for at, i in of(p.SendCredit, run_to(end, k * 0.5 + 0.499)) if i.credit.resume == {sid: 0}]
        assert asked == pytest.approx([0.3, 0.6, 1.2, 2.4, 4.4, 6.4])

    def test_gone_fails_the_attempt_so_that_another_can_go_on(self, end):
        sid = started(end)
        end.frame(0.1, W, frame(1, Prefill(sid, 0, 7, 7, 2), text(sid, 1, ids=(4, 5))), 50)
        end.instructions()
        end.frame(0.5, W, frame(2, Note(sid, -1, "gone")), 50)
        ((event,),) = [i.events for i in take(end, p.Deliver)]
        assert (event.code, event.retryable, event.seq) == ("stream_gone", True, 2)
        assert event.usage == Usage(prompt=7, cached=2, completion=2)

    def test_gone_after_events_in_one_frame_comes_last(self, end):
        sid = started(end)
        end.frame(0.1, W, frame(1, Note(sid, -1, "gone"), text(sid, 0)), 50)
        events = [event for i in take(end, p.Deliver) for event in i.events]
        assert [type(event) for event in events] == [Text, Fail]

    def test_a_gap_that_no_loss_explains_fails_the_attempt(self, end):
        sid = started(end)
        end.frame(0.1, W, frame(1, text(sid, 4)), 50)
        cancel, deliver = [i for i in end.instructions() if isinstance(i, p.SendCancel | p.Deliver)]
        assert cancel.cancel.sid == sid
        assert deliver.events[0].code == "stream_gone"

    def test_unknown_streams_are_cancelled_but_not_with_every_event(self, end):
        sid = started(end)
        end.worker_gone(0.0, W, "dead")
        end.instructions()
        for k in range(20):
            end.frame(k * 0.05, W, frame(k + 1, text(sid, k)), 50)
        assert len(take(end, p.SendCancel)) == 5

    def test_terminal_of_an_unknown_stream_is_acknowledged_instead(self, end):
        sid = started(end)
        end.worker_gone(0.0, W, "dead")
        end.instructions()
        end.frame(1.0, W, frame(1, End(sid, 0, "stop", DONE)), 50)
        (credit,) = end.instructions()
        assert credit.credit.ended == (sid,)


class TestCredit:
    def test_every_200_ms_while_a_stream_is_registered(self, end):
        sid = started(end)
        given = of(p.SendCredit, run_to(end, 1.1))
        plain = [at for at, i in given if not i.credit.resume]
        assert plain[0] == pytest.approx(0.2)
        assert max(b - a for (a, _), (b, _) in pairwise(given)) <= 0.2 + 1e-9
        assert given[0][1].credit.open == (sid,)

    def test_every_32_frames(self, end):
        sid = started(end)
        for k in range(32):
            assert not take(end, p.SendCredit)
            end.frame(0.01, W, frame(k + 1, text(sid, k)), 50)
        (credit,) = take(end, p.SendCredit)
        assert (credit.credit.ack, credit.credit.allow_fseq) == (32, 32 + 512)

    def test_every_quarter_of_the_byte_window(self, end):
        sid = started(end)
        end.frame(0.01, W, frame(1, text(sid, 0)), 2**20 - 1)
        assert not take(end, p.SendCredit)
        end.frame(0.01, W, frame(2, text(sid, 1)), 1)
        assert take(end, p.SendCredit)

    def test_stops_when_nothing_is_left(self, end):
        sid = started(end)
        end.frame(0.1, W, frame(1, End(sid, 0, "stop", DONE)), 50)
        end.instructions()
        assert len(of(p.SendCredit, run_to(end, 60.0))) == T.ended_repeats - 1
        assert end.next_wake() is None


class TestCancel:
    def test_leaves_the_open_list_at_once_and_still_delivers_its_terminal(self, end):
        sid = started(end)
        end.cancel(0.1, sid, "client")
        end.cancel(0.1, sid, "again")
        assert end.instructions() == [p.SendCancel(W, Cancel(gep="gep", sid=sid, reason="client"))]
        assert end.open_count() == 0
        assert end.live(sid)
        given = of(p.SendCredit, run_to(end, 0.31))
        assert given[0][1].credit.open == ()
        end.frame(0.35, W, frame(1, End(sid, 0, "cancelled", DONE)), 50)
        assert take(end, p.Deliver) == [p.Deliver(sid, (End(sid, 0, "cancelled", DONE),))]

    def test_is_sent_again_until_it_gives_up_with_what_was_received(self, end):
        sid = started(end)
        end.frame(0.0, W, frame(1, text(sid, 0, ids=(1, 2, 3))), 50)
        end.instructions()
        end.cancel(0.0, sid, "client")
        done = [(0.0, i) for i in end.instructions()]
        for k in range(8):
            end.heard(k * 0.5, W)
            done += run_to(end, k * 0.5 + 0.499)
        assert len(of(p.SendCancel, done)) == 15
        ((at, deliver),) = of(p.Deliver, done)
        assert at == pytest.approx(3.0)
        (fail,) = deliver.events
        assert (fail.code, fail.usage.completion, fail.usage.prompt) == ("cancel_unanswered", 3, 7)

    @pytest.mark.parametrize("code", ["cancelled", "busy"])
    def test_of_a_job_that_was_then_refused(self, end, code):
        sid = end.open(0.0, W, 0)
        end.cancel(0.1, sid, "client")
        end.replied(0.2, W, sid, nack(sid, code))
        assert take(end, (p.Deliver, p.Refused)) == [p.Deliver(sid, (End(sid, 0, "cancelled", Usage()),))]

    def test_of_a_stream_that_the_worker_does_not_have(self, end):
        sid = started(end)
        end.cancel(0.1, sid, "client")
        end.frame(0.2, W, frame(1, Note(sid, -1, "gone")), 50)
        ((event,),) = [i.events for i in take(end, p.Deliver)]
        assert (event.reason, event.usage.prompt) == ("cancelled", 7)

    def test_resumed_ids_count_as_completion(self, end):
        sid = end.open(0.0, W, 0, resumed=5)
        end.frame(0.0, W, frame(1, text(sid, 0)), 50)
        end.worker_gone(0.1, W, "dead")
        assert take(end, p.Deliver)[-1].events[0].usage.completion == 6


class TestLiveness:
    def test_a_new_epoch_ends_every_stream_of_the_old(self, end):
        a, b = started(end, count=2)
        end.announced(0.1, W, "wep2")
        assert [(i.sid, i.events[0].code) for i in take(end, p.Deliver)] == [
            (a, "worker_restarted"), (b, "worker_restarted"),
        ]  # fmt: skip
        end.frame(0.2, W, frame(1, text(a, 0)), 50)
        end.announced(0.2, W, "wep")
        assert end.instructions() == []
        assert end.counters.frames_stale == 1

    def test_a_job_that_reached_the_new_process_stays(self, end):
        old = started(end)
        new = end.open(0.1, W, 0)
        end.replied(0.2, W, new, accept(new, wep="wep2"))
        done = end.instructions()
        assert [i.sid for i in done if isinstance(i, p.Deliver)] == [old]
        assert [i.sid for i in done if isinstance(i, p.Accepted)] == [new]
        end.announced(0.3, W, "wep2")
        assert end.live(new)

    def test_a_frame_of_the_new_process_also_tells(self, end):
        old = started(end)
        new = end.open(0.1, W, 0)
        end.frame(0.2, W, frame(1, text(new, 0), wep="wep2"), 50)
        assert [(i.sid, type(i.events[0])) for i in take(end, p.Deliver)] == [(old, Fail), (new, Text)]

    def test_a_replaced_epoch_comes_back_only_if_its_successor_is_silent(self, end):
        end.announced(1.0, W, "wep2")
        sid = end.open(1.0, W, 0)
        end.replied(1.0, W, sid, accept(sid, wep="wep2"))
        for k in range(10):
            end.announced(1.0 + k, W, "wep")
            end.announced(1.0 + k, W, "wep2")
        assert end.live(sid)
        for k in range(6):
            end.announced(20.0 + k * 0.5, W, "wep")
        assert not end.live(sid)

    def test_frames_of_another_gateway_process_are_ignored(self, end):
        sid = started(end)
        end.frame(0.1, W, frame(1, text(sid, 0), gep="before"), 50)
        assert end.instructions() == []

    def test_frozen_after_two_and_a_half_seconds_without_a_word(self, end):
        sid = started(end)
        done = run_to(end, 3.0)
        ((at, deliver),) = of(p.Deliver, done)
        assert (at, deliver.events[0].code) == (2.5, "worker_frozen")
        assert [i.cancel.sid for _, i in of(p.SendCancel, done)] == [sid]

    @pytest.mark.parametrize("word", ["heard", "announced"])
    def test_any_word_keeps_it_alive(self, end, word):
        started(end)
        for k in range(5):
            end.announced(k * 2.0, W, "wep") if word == "announced" else end.heard(k * 2.0, W)
            assert not of(p.Deliver, run_to(end, k * 2.0 + 2.0))

    def test_no_responders_three_in_a_row_over_half_a_second(self, end):
        sid = started(end)
        for at in (1.0, 1.2, 1.4):
            end.no_responders(at, W)
            assert end.live(sid)
        end.no_responders(1.5, W)
        assert take(end, p.Deliver)[0].events[0].code == "worker_lost"

    def test_one_answer_in_between_starts_the_count_again(self, end):
        sid = started(end)
        for at in (1.0, 1.2, 1.4):
            end.no_responders(at, W)
        end.heard(1.45, W)
        for at in (1.5, 1.6):
            end.no_responders(at, W)
        assert end.live(sid)

    def test_no_responders_soon_after_our_own_reconnect_prove_nothing(self, end):
        sid = started(end)
        end.disconnected(1.0)
        end.reconnected(2.0)
        for k in range(14):
            end.heard(2.0 + k * 0.2, "other")
            end.no_responders(2.0 + k * 0.2, W)
        assert end.live(sid)
        for k in range(4):
            end.no_responders(5.0 + k * 0.2, W)
        assert not end.live(sid)


class TestOwnConnection:
    def test_timers_stop_while_disconnected_and_start_from_zero(self, end):
        sid = started(end)
        opening = end.open(0.2, W, 0)
        end.disconnected(0.3)
        end.tick(9.0)
        end.cancel(9.0, opening, "client")
        assert end.instructions() == []
        assert end.next_wake() == pytest.approx(10.3)
        end.reconnected(9.5)
        first = end.instructions()
        assert [i.cancel.sid for i in first if isinstance(i, p.SendCancel)] == [opening]
        assert [i.credit.resume for i in first if isinstance(i, p.SendCredit)] == [{sid: 0, opening: 0}]
        assert not of(p.Deliver, run_to(end, 11.9))
        assert of(p.Deliver, run_to(end, 12.1))

    def test_after_ten_seconds_every_stream_ends(self, end):
        started(end, count=3)
        end.disconnected(1.0)
        end.disconnected(5.0)
        end.tick(10.9)
        assert end.instructions() == []
        end.tick(11.0)
        assert [i.events[0].code for i in end.instructions()] == ["disconnected"] * 3
        assert end.next_wake() is None

    def test_a_stall_of_our_own_does_not_make_workers_look_dead(self, end):
        sid = started(end)
        opening = end.open(0.0, W, 0)
        end.lagged(4.0)
        done = run_to(end, 4.24)
        assert end.live(sid)
        assert end.live(opening)
        assert not of((p.Deliver, p.ResendJob), done)


class TestHostile:
    @pytest.mark.parametrize("fseq", [0, -1, 2**62])
    def test_impossible_frame_numbers(self, end, fseq):
        sid = started(end)
        with pytest.raises(ProtocolError):
            end.frame(0.1, W, frame(fseq, text(sid, 0)), 50)
        end.frame(0.1, W, frame(1, text(sid, 0)), 50)
        assert take(end, p.Deliver) == [p.Deliver(sid, (text(sid, 0),))]

    @pytest.mark.parametrize(
        "event",
        [
            Text(10, -1, "x"),
            Text(10, -7, "x"),
            Text(3, 0, "x"),
            Text(99, 0, "x"),
            Note(10, 1, "gone"),
            Note(10, 0, "gone"),
        ],
        ids=repr,
    )
    def test_impossible_events_raise_after_the_good_ones_were_used(self, end, event):
        sid = started(end)
        with pytest.raises(ProtocolError):
            end.frame(0.1, W, frame(1, event, text(sid, 0)), 50)
        assert take(end, p.Deliver) == [p.Deliver(sid, (text(sid, 0),))]
        assert end.live(sid)

    def test_a_worker_cannot_speak_for_another(self, end):
        sid = started(end)
        end.frame(0.1, "w2", frame(1, End(sid, 0, "stop", DONE), wep="x"), 50)
        assert not take(end, p.Deliver)
        end.replied(0.1, "w2", sid, nack(sid))
        assert end.live(sid)

    def test_memory_is_bounded_against_a_worker_that_never_repairs(self, end):
        started(end)
        for k in range(64 * 512):
            end.frame(0.1, W, frame(k + 2), 1)
        with pytest.raises(ProtocolError):
            end.frame(0.1, W, frame(64 * 512 + 2), 1)
        assert end._peers[W].arrivals.scattered <= 64 * 512

    def test_the_stray_list_is_bounded(self, end):
        sids = started(end, count=3000)
        end.worker_gone(0.0, W, "dead")
        end.frame(0.1, W, frame(1, *(text(sid, 0) for sid in sids)), 1)
        assert len(end._peers[W].strays) <= 1024
