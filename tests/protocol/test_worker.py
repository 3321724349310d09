"""The worker's rules, one by one."""

import pytest

from shared import protocol as p
from shared.errors import ProtocolError
from shared.protocol.outbox import weigh
from shared.wire import Accept, Cancel, Credit, End, Fail, Job, Nack, Note, Prefill, Resume, Text, TokenLogprob, Usage
from shared.wire import encode as wire_encode

T = p.Timing()
G = "g1"
DONE = Usage(prompt=3, completion=2)


@pytest.fixture
def end():
    return p.WorkerEnd("w1", "wep")


def job(sid=1, gep="gep", **fields):
    return Job(
        gep=gep, sid=sid, aid=f"{gep}.{sid}", tenant="t", model="m", version="1", kind="ids", input=[1], deadline_ms=1000,
        **fields,
    )  # fmt: skip


def credit(ack=0, open=(1,), *, wep="wep", allow=None, size=T.window_bytes, **fields):  # noqa: A002
    allow = ack + T.window_frames if allow is None else allow
    return Credit(gep="gep", wep=wep, ack=ack, allow_fseq=allow, allow_bytes=size, open=open, **fields)


def accept(sid=1):
    return Accept(wep="wep", sid=sid, prompt_tokens=3)


def start(end, now=0.0, *sids):
    for sid in sids or (1,):
        end.job(now, G, job(sid), f"r{sid}")
        end.answer(now, G, sid, accept(sid))
    end.instructions()


def take(end, kind):
    return [i for i in end.instructions() if isinstance(i, kind)]


def sent(end, now):
    """The frames that are due at `now`."""
    if (at := end.flush_at()) is not None and at <= now:
        end.flush(now)
    return [i.frame for i in take(end, p.SendFrame)]


def say(end, now, *texts, sid=1):
    for text in texts:
        end.text(now, G, sid, text, (len(text),))


def run_to(end, until):
    done = []
    while (at := end.next_wake()) is not None and at <= until:
        end.tick(at)
        done += [(round(at, 6), i) for i in end.instructions()]
    return done


class TestJob:
    def test_starts_once_and_every_request_gets_the_same_answer(self, end):
        end.job(0.0, G, job(), "a")
        end.job(0.1, G, job(), "b")
        assert end.instructions() == [p.Start(G, 1, job())]
        end.answer(0.2, G, 1, accept())
        end.answer(0.2, G, 1, Nack(wep="wep", sid=1, code="busy", message=""))
        assert end.instructions() == [p.Answer("a", accept()), p.Answer("b", accept())]
        end.job(0.3, G, job(), "c")
        assert end.instructions() == [p.Answer("c", accept())]
        assert end.open_count() == 1

    def test_a_refusal_is_also_remembered(self, end):
        nack = Nack(wep="wep", sid=1, code="busy", message="full")
        end.job(0.0, G, job(), "a")
        end.answer(0.0, G, 1, nack)
        end.job(0.1, G, job(), "b")
        assert take(end, p.Answer) == [p.Answer("a", nack), p.Answer("b", nack)]
        assert end.open_count() == 0

    def test_a_late_copy_of_a_finished_job_runs_nothing(self, end):
        start(end)
        end.end(0.0, G, 1, "stop", DONE)
        end.flush(0.0)
        end.credit(0.1, G, credit(ack=1, open=(), ended=(1,)))
        end.instructions()
        end.job(5.0, G, job(), "late")
        assert end.instructions() == [p.Answer("late", accept())]

    def test_another_version_is_refused(self, end):
        end.job(0.0, G, job(proto=99), "a")
        (answer,) = end.instructions()
        assert (answer.reply_to, answer.reply.code) == ("a", "bad_proto")

    def test_tombstone_lasts_a_minute(self, end):
        end.cancel(0.0, G, Cancel(gep="gep", sid=1, reason="client"))
        end.job(59.9, G, job(), "a")
        (answer,) = end.instructions()
        assert (answer.reply.code, answer.reply.sid) == ("cancelled", 1)
        end.job(60.1, G, job(), "b")
        assert take(end, p.Start)

    def test_tombstones_are_bounded(self):
        end = p.WorkerEnd("w1", "wep", p.Timing(tombstones=10))
        for sid in range(100):
            end.cancel(0.0, G, Cancel(gep="gep", sid=sid, reason="client"))
        assert len(end._boxes[G].tombs) <= 11

    def test_a_new_gateway_process_aborts_everything_of_the_old(self, end):
        start(end, 0.0, 1, 2)
        say(end, 0.0, "abc", sid=2)
        end.end(0.0, G, 2, "stop", DONE)
        end.job(0.1, G, job(1, gep="gep2"), "new")
        done = end.instructions()
        assert done == [
            p.Abort(G, 1, "gateway_restarted", final=True),
            p.Orphaned(G, "gep.1", 1, 0, 0),
            p.Orphaned(G, "gep.2", 2, 1, 0),
            p.Start(G, 1, job(1, gep="gep2")),
        ]
        end.job(0.2, G, job(7), "old")
        (answer,) = end.instructions()
        assert (answer.reply_to, answer.reply.code) == ("old", "cancelled")

    def test_a_heartbeat_tells_of_a_new_process_too(self, end):
        start(end)
        end.announced(0.1, "unknown", "x")
        end.announced(0.1, G, "gep")
        assert end.open_count() == 1
        end.announced(0.2, G, "gep2")
        assert end.open_count() == 0


class TestFrames:
    def test_first_event_and_terminal_go_at_once_later_text_lingers(self, end):
        start(end)
        say(end, 0.1, "a")
        assert end.flush_at() == 0.1
        (frame,) = sent(end, 0.1)
        assert (frame.fseq, frame.wep, frame.gep) == (1, "wep", "gep")
        end.credit(0.1, G, credit())
        say(end, 0.101, "b")
        say(end, 0.104, "c")
        assert end.flush_at() == pytest.approx(0.106)
        assert sent(end, 0.104) == []
        (frame,) = sent(end, 0.1061)
        assert [event.text for event in frame.events] == ["b", "c"]
        say(end, 0.12, "d")
        end.end(0.121, G, 1, "stop", DONE)
        assert end.flush_at() == 0.121
        (frame,) = sent(end, 0.121)
        assert [event.seq for event in frame.events] == [3, 4]
        assert end.flush_at() is None

    def test_one_frame_holds_everything_for_one_gateway(self, end):
        start(end, 0.0, 1, 2, 3)
        for sid in (1, 2, 3):
            say(end, 0.0, "x", "y", sid=sid)
        (frame,) = sent(end, 0.0)
        assert [event.sid for event in frame.events] == [1, 1, 2, 2, 3, 3]

    def test_first_text_goes_at_once_even_after_prefill(self, end):
        start(end)
        end.prefill(0.0, G, 1, 1, 3, 0)
        sent(end, 0.0)
        say(end, 0.5, "a")
        assert end.flush_at() == 0.5

    def test_waiting_prefill_progress_is_replaced_but_never_once_sent(self, end):
        start(end)
        for done in (1, 2, 3):
            end.prefill(0.0, G, 1, done, 9, 0)
        (frame,) = sent(end, 0.0)
        assert frame.events == (Prefill(1, 0, 3, 9, 0),)
        end.credit(0.1, G, credit(resume={1: 0}))
        end.prefill(0.1, G, 1, 4, 9, 0)
        (frame,) = sent(end, 0.2)
        assert frame.events == (Note(1, -1, "resumed"), Prefill(1, 0, 3, 9, 0), Prefill(1, 1, 4, 9, 0))

    def test_a_big_backlog_makes_several_frames(self):
        end = p.WorkerEnd("w1", "wep", p.Timing(frame_bytes=1000))
        start(end)
        say(end, 0.0, *["x" * 200] * 20)
        frames = sent(end, 0.0)
        assert [frame.fseq for frame in frames] == list(range(1, len(frames) + 1))
        assert [event.seq for frame in frames for event in frame.events] == list(range(20))
        assert all(len(wire_encode(frame)) <= 1064 for frame in frames)

    @pytest.mark.parametrize(
        "event",
        [
            Text(2**40, 2**31, "plain", (1, 2**31)),
            Text(1, 0, "é" * 50 + "漢字😀" * 50),
            Text(1, 0, "x", (1,), (TokenLogprob(1, "😀", "😀".encode(), -1.5, (TokenLogprob(2, "y", b"y", -2.0),)),)),
            End(2**60, 2**31, "cancelled", Usage(2**31, 2**31, 2**31, 2**31, 2**31, 1.5)),
            Fail(2**60, 2**31, "engine_fault", "sp😀k" * 99, retryable=True, usage=Usage(2**31, 2**31, 2**31)),
            Prefill(2**60, 2**31, 2**31, 2**31, 2**31),
        ],
        ids=lambda event: type(event).__name__,
    )
    def test_weight_is_never_less_than_the_encoding(self, event):
        assert len(wire_encode(event)) <= weigh(event)

    def test_events_of_unknown_or_finished_streams_are_ignored(self, end):
        say(end, 0.0, "x")
        end.end(0.0, G, 1, "stop", DONE)
        start(end)
        end.fail(0.0, G, 1, "engine_fault", "broke", retryable=True)
        end.end(0.0, G, 1, "stop", DONE)
        say(end, 0.0, "x")
        end.prefill(0.0, G, 1, 1, 1, 0)
        end.answer(0.0, G, 9, accept(9))
        (frame,) = sent(end, 0.0)
        assert [type(event) for event in frame.events] == [Fail]


class TestWindow:
    def test_before_the_first_credit_the_default_window_holds(self):
        end = p.WorkerEnd("w1", "wep", p.Timing(window_frames=3, linger=0.0))
        start(end)
        for k in range(10):
            say(end, 0.0, f"{k}")
            end.flush(0.0)
        assert len(take(end, p.SendFrame)) == 3
        end.credit(0.1, G, Credit(gep="gep", wep="wep", ack=3, allow_fseq=6, allow_bytes=9999, open=(1,)))
        (frame,) = sent(end, 0.1)
        assert [event.seq for event in frame.events] == list(range(3, 10))

    def test_bytes_are_bounded_too_but_one_giant_event_passes_alone(self):
        end = p.WorkerEnd("w1", "wep", p.Timing(window_bytes=1000, frame_bytes=500, linger=0.0))
        start(end)
        say(end, 0.0, *["x" * 200] * 10)
        frames = sent(end, 0.0)
        assert sum(len(frame.events) for frame in frames) == 4
        end.credit(0.1, G, credit(ack=len(frames), size=1000))
        assert sum(len(frame.events) for frame in sent(end, 0.1)) == 4
        end.credit(0.2, G, credit(ack=2 * len(frames), size=1000))
        sent(end, 0.2)
        say(end, 0.3, "y" * 5000)
        assert sent(end, 0.3) == []
        end.credit(0.4, G, credit(ack=end._boxes[G].sent, size=1000))
        assert len(sent(end, 0.4)) == 1

    def test_a_resume_opens_the_window_even_if_all_of_it_was_lost(self):
        end = p.WorkerEnd("w1", "wep", p.Timing(window_frames=3, linger=0.0))
        start(end)
        for k in range(5):
            say(end, 0.0, f"{k}")
            end.flush(0.0)
        assert len(take(end, p.SendFrame)) == 3
        end.credit(
            0.3, G, Credit(gep="gep", wep="wep", ack=0, allow_fseq=3, allow_bytes=9999, open=(1,), resume={1: 0})
        )
        (frame,) = sent(end, 0.3)
        assert frame.fseq == 4
        assert [event.seq for event in frame.events] == [-1, 0, 1, 2, 3, 4]


class TestReplay:
    def frames(self, end, count):
        start(end)
        for k in range(count):
            say(end, 0.0, f"{k}")
            end.flush(0.1)
        return [i.frame for i in take(end, p.SendFrame)]

    def test_new_frame_numbers_old_event_numbers(self, end):
        self.frames(end, 3)
        end.credit(0.1, G, credit(ack=1, resume={1: 1}))
        (frame,) = sent(end, 0.1)
        assert frame.fseq == 4
        assert frame.events == (Note(1, -1, "resumed"), Text(1, 1, "1", (1,)), Text(1, 2, "2", (1,)))
        assert end.counters.replays == 2

    def test_acknowledged_events_are_let_go(self, end):
        self.frames(end, 3)
        end.credit(0.1, G, credit(ack=2))
        assert len(end._boxes[G].streams[1].log) == 1

    def test_an_ack_of_the_first_copy_does_not_free_what_was_repeated_later(self, end):
        self.frames(end, 3)
        end.credit(0.1, G, credit(ack=0, resume={1: 0}))
        sent(end, 0.1)
        end.credit(0.2, G, credit(ack=3))
        assert len(end._boxes[G].streams[1].log) == 3
        end.credit(0.3, G, credit(ack=4))
        assert len(end._boxes[G].streams[1].log) == 0

    def test_a_late_copy_of_an_old_resume_does_no_harm(self, end):
        self.frames(end, 3)
        end.credit(0.1, G, credit(ack=2))
        end.credit(0.2, G, credit(ack=0, resume={1: 0}))
        (frame,) = sent(end, 0.2)
        assert frame.events == (Note(1, -1, "resumed"), Text(1, 2, "2", (1,)))

    def test_unknown_stream_is_gone(self, end):
        start(end)
        end.credit(0.1, G, credit(resume={77: 0}))
        (frame,) = sent(end, 0.1)
        assert frame.events == (Note(77, -1, "gone"),)


class TestEnd:
    def finished(self, end):
        start(end)
        say(end, 0.0, "abc")
        end.end(0.0, G, 1, "stop", DONE)
        sent(end, 0.0)

    @pytest.mark.parametrize("ack", [{"ack": 1}, {"ended": (1,)}])
    def test_is_let_go_when_acknowledged(self, end, ack):
        self.finished(end)
        assert (end.open_count(), end.unacked_count()) == (0, 1)
        end.credit(0.1, G, credit(open=(), **ack))
        assert end.unacked_count() == 0
        assert end.next_wake() in (None, 3.0)

    def test_is_never_aborted_but_expires_as_an_orphan(self, end):
        self.finished(end)
        for k in range(40):
            end.credit(k * 0.2, G, credit(open=()))
        end.cancel(8.0, G, Cancel(gep="gep", sid=1, reason="client"))
        assert end.unacked_count() == 1
        done = run_to(end, 10.0)
        assert done == [(10.0, p.Orphaned(G, "gep.1", 1, 1, 0))]


class TestCancel:
    def test_stops_the_engine_and_waits_for_its_usage(self, end):
        start(end)
        for _ in range(3):
            end.cancel(0.1, G, Cancel(gep="gep", sid=1, reason="client"))
        assert end.instructions() == [p.Abort(G, 1, "client", final=False)]
        end.end(0.2, G, 1, "cancelled", DONE)
        (frame,) = sent(end, 0.2)
        assert frame.events == (End(1, 0, "cancelled", DONE),)

    def test_before_the_answer_refuses_every_request(self, end):
        end.job(0.0, G, job(), "a")
        end.instructions()
        end.cancel(0.1, G, Cancel(gep="gep", sid=1, reason="client"))
        abort, answer = end.instructions()
        assert abort == p.Abort(G, 1, "client", final=True)
        assert (answer.reply_to, answer.reply.code) == ("a", "cancelled")
        end.answer(0.2, G, 1, accept())
        assert end.instructions() == []

    def test_of_an_unknown_stream_is_answered_gone(self, end):
        end.cancel(0.1, G, Cancel(gep="gep", sid=5, reason="client"))
        (frame,) = sent(end, 0.1)
        assert frame.events == (Note(5, -1, "gone"),)

    def test_is_not_subject_to_the_lease_but_ends_after_three_seconds(self, end):
        start(end)
        end.cancel(0.0, G, Cancel(gep="gep", sid=1, reason="client"))
        end.instructions()
        for k in range(14):
            end.credit(k * 0.2, G, credit(open=()))
        assert end.open_count() == 1
        assert (3.0, p.Abort(G, 1, "cancel_unfinished", final=True)) in run_to(end, 3.0)


class TestLease:
    def test_a_stream_that_the_list_lacks_for_a_second_is_aborted(self, end):
        start(end, 0.0, 1, 2)
        say(end, 0.0, "abc", "de")
        sent(end, 0.0)
        end.credit(0.1, G, credit(open=(1, 2)))
        for at in (0.2, 0.7, 1.1):
            end.credit(at, G, credit(ack=1, open=(2,)))
        assert end.instructions() == []
        end.credit(1.2, G, credit(ack=1, open=(2,)))
        assert end.instructions() == [p.Abort(G, 1, "lease", final=True), p.Orphaned(G, "gep.1", 1, 2, 2)]
        assert end.counters.lease_aborts == 1

    def test_one_listing_in_between_renews_it(self, end):
        start(end)
        for at, listed in ((0.2, ()), (0.9, (1,)), (1.3, ()), (2.2, ())):
            end.credit(at, G, credit(open=listed))
        assert end.open_count() == 1

    def test_without_credit_it_stops_emitting_and_goes_on_when_credit_comes(self, end):
        start(end)
        say(end, 0.0, "a")
        sent(end, 0.0)
        say(end, 1.0, "b")
        assert sent(end, 1.01) == []
        assert end.flush_at() is None
        end.credit(1.5, G, credit(ack=1))
        (frame,) = sent(end, 1.5)
        assert frame.events == (Text(1, 1, "b", (1,)),)

    def test_without_credit_for_three_seconds_it_gives_up(self, end):
        start(end)
        say(end, 0.0, "abc")
        sent(end, 0.0)
        end.credit(0.5, G, credit())
        done = run_to(end, 3.6)
        assert done == [(3.5, p.Abort(G, 1, "no_credit", final=True)), (3.5, p.Orphaned(G, "gep.1", 1, 1, 0))]

    def test_the_ids_of_a_resumed_job_count_as_delivered(self, end):
        end.job(0.0, G, job(resume=Resume(ids=(1, 2, 3), delivered_chars=9)), "a")
        end.answer(0.0, G, 1, accept())
        say(end, 0.0, "x")
        end.instructions()
        assert (3.0, p.Orphaned(G, "gep.1", 1, 4, 3)) in run_to(end, 3.0)

    def test_an_idle_gateway_owes_no_credit_when_a_job_comes(self, end):
        start(end)
        end.end(0.0, G, 1, "stop", DONE)
        sent(end, 0.0)
        end.credit(0.1, G, credit(ack=1, open=()))
        start(end, 50.0, 2)
        say(end, 50.0, "x", sid=2)
        assert len(sent(end, 50.0)) == 1
        assert run_to(end, 52.9) == []


class TestOwnConnection:
    def test_nothing_is_sent_and_timers_stop(self, end):
        start(end)
        end.disconnected(0.1)
        say(end, 0.2, "a")
        assert end.flush_at() is None
        assert end.next_wake() == pytest.approx(10.1)
        end.reconnected(9.0)
        assert len(sent(end, 9.0)) == 1
        assert run_to(end, 11.9) == []
        assert end.next_wake() == 12.0

    def test_after_ten_seconds_it_aborts_and_reports_the_orphans_later(self, end):
        start(end)
        say(end, 0.0, "abc")
        end.disconnected(1.0)
        end.tick(11.0)
        assert end.instructions() == [p.Abort(G, 1, "disconnected", final=True)]
        end.reconnected(20.0)
        assert end.instructions() == [p.Orphaned(G, "gep.1", 1, 1, 0)]

    def test_a_stall_of_our_own_is_not_the_gateways_silence(self, end):
        start(end)
        end.lagged(5.0)
        assert run_to(end, 7.9) == []
        say(end, 5.1, "a")
        assert len(sent(end, 5.2)) == 1

    def test_no_responders(self, end):
        start(end)
        for at in (1.0, 1.2, 1.4, 1.5):
            assert end.open_count() == 1
            end.no_responders(at, G)
        assert end.open_count() == 0

    def test_no_responders_soon_after_our_own_reconnect_prove_nothing(self, end):
        start(end)
        end.disconnected(0.5)
        end.reconnected(1.0)
        for k in range(14):
            end.no_responders(1.0 + k * 0.2, G)
        end.no_responders(1.0, "unknown")
        assert end.open_count() == 1


class TestHostile:
    @pytest.mark.parametrize(
        "bad",
        [
            credit(ack=5),
            credit(ack=-1, allow=1),
            credit(allow=-1),
            credit(size=-1),
            credit(ended=(1,)),
            credit(resume={1: -1}),
            credit(resume={1: 3}),
        ],
        ids=str,
    )
    def test_an_impossible_credit_changes_nothing(self, end, bad):
        start(end)
        say(end, 0.0, "a", "b")
        sent(end, 0.0)
        with pytest.raises(ProtocolError):
            end.credit(0.1, G, bad)
        stream = end._boxes[G].streams[1]
        assert (stream.first, stream.cursor, len(stream.log)) == (0, 2, 2)
        end.credit(0.2, G, credit(ack=1))
        assert (stream.first, len(stream.log)) == (2, 0)

    def test_impossible_jobs_and_cancels(self, end):
        with pytest.raises(ProtocolError):
            end.job(0.0, G, job(-1), "a")
        with pytest.raises(ProtocolError):
            end.cancel(0.0, G, Cancel(gep="gep", sid=-1, reason=""))
        start(end)
        with pytest.raises(ProtocolError):
            end.job(0.0, G, Job(**{**{f: getattr(job(), f) for f in Job.__struct_fields__}, "aid": "other"}), "a")
        assert end.open_count() == 1

    def test_a_job_repeated_without_end_holds_few_handles(self, end):
        for k in range(8):
            end.job(0.0, G, job(), k)
        with pytest.raises(ProtocolError):
            end.job(0.0, G, job(), "more")

    def test_an_endless_window_is_cut_down(self, end):
        start(end)
        end.credit(0.0, G, credit(allow=2**60))
        assert end._boxes[G]._limit <= 16 * T.window_frames

    def test_credit_for_an_earlier_process_of_this_worker_is_ignored(self, end):
        start(end)
        end.credit(0.1, G, credit(ack=99, wep="before"))
        assert end.counters.credits_stale == 1
