"""Answers are taken from whom they must come, in our own tagged types, and given only to whom asked."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.core.fleet import Fleet
from gateway.services.streams import Streams
from shared import subjects, wire
from shared.bus import Bus, Delivery
from shared.errors import ProtocolError
from shared.protocol import Answer
from shared.settings import LimitSettings, WorkerSettings
from workers.compose import spec_for
from workers.engines.null import NullEngine
from workers.node import Node


@pytest.fixture
def streams():
    bus = Bus("g1", "e1")
    fleet = Fleet()
    fleet.workers["w1"] = SimpleNamespace(ann=SimpleNamespace(wep="wep"))
    return Streams("g1", "e1", bus, fleet, LimitSettings())


def job(sid=1):
    return wire.Job(
        gep="e1", sid=sid, aid="r.0.0", tenant="t", model="m", version="1", kind="text", input="x", deadline_ms=9
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"io.nats.jetstream.api.v1.stream_create_response","did_create":true}',
        b'+ACK {"stream":"USAGE","seq":5}',
        b"",
        b"\xc1",
        wire.encode(wire.Ann(wep="wep", n=1, state="ready", slots=wire.Slots(total=1, free=1))),
        wire.encode(wire.Accept(wep="wep", sid=99, prompt_tokens=3)),
    ],
    ids=["JetStream", "a JetStream ack", "nothing", "no MessagePack", "another message of ours", "another stream's"],
)
async def test_a_reply_that_is_no_answer_of_ours_is_a_protocol_error(streams, body):
    attempt = streams.register("w1", job, size=10, choice=0, inbox=streams.inbox(lambda: None))
    subject = subjects.answer("_INBOX.g1.e1", "w1", attempt.sid)
    with pytest.raises(ProtocolError, match="w1 answered"):
        streams._on_answer(Delivery(subject, body, "", 0))
    assert not attempt.answer.done(), "the stream goes on as if nothing had come"
    good = wire.encode(wire.Accept(wep="wep", sid=attempt.sid, prompt_tokens=3))
    streams._on_answer(Delivery(subject, good, "", 0))
    assert attempt.answer.result().prompt_tokens == 3


async def test_the_subject_of_an_answer_is_the_one_that_its_worker_may_publish_on(streams):
    """The two ends of a rule: what the gateway asks for, and `RIGHTS`."""
    from shared.permissions import covers, permissions

    subject = subjects.answer(streams._bus.inbox, "w1", 7)
    assert any(covers(pattern, subject) for pattern in permissions("worker", "w1").publish)
    assert not any(covers(pattern, subject) for pattern in permissions("worker", "w2").publish)
    assert any(covers(pattern, subject) for pattern in permissions("gateway", "g1").subscribe)
    assert not any(covers(pattern, subject) for pattern in permissions("gateway", "g2").subscribe)


@pytest.mark.parametrize(
    ("reply", "answered"),
    [
        ("_INBOX.g1.e1.j.w1.1", True),
        ("_INBOX.g2.e1.j.w1.1", False),
        ("_INBOX.g1.e1.j.w2.1", False),
        ("_INBOX.g1.e1.c.w1.1", False),
        ("ef.w.w2.job.g1", False),
        ("$JS.API.STREAM.DELETE.USAGE", False),
        ("", False),
    ],
)
async def test_a_worker_answers_nobody_but_the_gateway_that_asked(reply, answered):
    """Else one gateway could have a worker refuse another one's jobs, in the worker's own name."""
    worker = WorkerSettings(name="w1", engine="null")
    node = Node(worker, spec_for(worker), NullEngine(), Bus("w1", "e2"))
    delivery = Delivery("ef.w.w1.job.g1", wire.encode(job()), reply, 0)
    if answered:
        await node._on_job(delivery)
    else:
        with pytest.raises(ProtocolError, match="wants its answer on"):
            await node._on_job(delivery)
    for _ in range(20):
        await asyncio.sleep(0)
    answers = [one.reply_to for one in node.end.instructions() if isinstance(one, Answer)]
    assert answers == ([reply] if answered else [])
