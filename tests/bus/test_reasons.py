"""Why the permissions are as they are: what happens, on a real server, with those that were not chosen."""

import json

import pytest

from gateway.up import identities
from gateway.up.nats_config import identities_conf
from shared import subjects
from tests.bus.probes import Probe, reconfigure, reload

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_gateway_that_could_make_streams_would_overhear_the_others(loosened, monkeypatch):
    """Why nobody but `provision` has the JetStream API: one stream with republish, and g2 reads what g1 asks of w1."""
    api = subjects.Right("gateway", "publish", "$JS.API.STREAM.CREATE.*", "control")
    monkeypatch.setattr("shared.permissions.RIGHTS", (*subjects.RIGHTS, api))
    await reconfigure(loosened)
    thief, victim = await Probe.of(loosened, "gateway", "g2"), await Probe.of(loosened, "gateway", "g1")
    await thief.listen("_INBOX.g2.>")
    spy = {"name": "SPY", "subjects": ["ef.w.*.job.*"], "republish": {"src": ">", "dest": "_INBOX.g2.loot.>"}}
    assert await thief.publish("$JS.API.STREAM.CREATE.SPY", json.dumps(spy).encode(), "_INBOX.g2.made")
    made = json.loads(await thief.heard())
    assert "error" not in made, made
    assert await victim.publish("ef.w.w1.job.g1", b"a prompt")
    await thief.heard(lambda body: body == b"a prompt")
    await thief.close()
    await victim.close()


async def test_allow_responses_would_let_two_conspirators_speak_as_anybody(loosened):
    """Why reply inboxes name who answers instead: `allow_responses` grants whatever the asker wrote as reply subject."""
    text = identities_conf(identities.listed(loosened.directory))
    start = text.index("publish:", text.index("# worker w2"))
    await reload(loosened, f'{text[:start]}allow_responses: {{ max: 2, expires: "1m" }}\n        {text[start:]}')
    victim, worker = await Probe.of(loosened, "worker", "w1"), await Probe.of(loosened, "worker", "w2")
    gateway = await Probe.of(loosened, "gateway", "g2")
    await victim.listen("ef.w.w1.job.*")
    await worker.listen("ef.w.w2.job.*")
    forged = "ef.w.w1.job.g1"
    assert not await worker.publish(forged, b"run this, says g1")
    assert await gateway.publish("ef.w.w2.job.g2", b"here you are", forged)
    await worker.heard()
    assert await worker.publish(forged, b"run this, says g1")
    await victim.heard(lambda body: body == b"run this, says g1")
    for probe in (victim, worker, gateway):
        await probe.close()


async def test_without_it_they_cannot(server):
    """The same two, with the permissions as they are."""
    worker, gateway = await Probe.of(server, "worker", "w2"), await Probe.of(server, "gateway", "g2")
    await worker.listen("ef.w.w2.job.*")
    for forged in ("ef.w.w1.job.g1", "$JS.API.STREAM.DELETE.USAGE", "_INBOX.g1.e1.j.w1.7"):
        worker.messages.clear()
        assert await gateway.publish("ef.w.w2.job.g2", b"here you are", forged)
        await worker.heard()
        assert not await worker.publish(forged, b"forged")
    await worker.close()
    await gateway.close()
