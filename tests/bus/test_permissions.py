"""Who may say and hear what on the bus, asked of a real NATS server with the generated configuration."""

import json

import pytest

from shared import subjects
from shared.permissions import covers, permissions
from tests.bus.probes import (
    ALWAYS,
    API,
    BODIES,
    EVERYBODY,
    STREAM,
    WANTED,
    Probe,
    breaches,
    concrete,
    entitled,
    reconfigure,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_everything_in_the_table_works_and_everything_else_is_refused(server):
    assert await breaches(server) == []


async def test_the_probes_ask_for_all_that_there_is():
    """The list of questions cannot run empty unnoticed."""
    granted = entitled()
    assert len({row for row, _, _ in concrete()}) == len(subjects.TABLE)
    for row in subjects.TABLE:
        for verb, kinds in (("publish", {row.publisher}), ("subscribe", {"gateway", "worker"} - _deaf(row))):
            for kind in kinds:
                mine = [subject for k, _, v, subject in granted if (k, v) == (kind, verb)]
                assert any(covers(_any(row.pattern), subject) for subject in mine), (row, kind, verb)
    for kind, name in WANTED:
        others = {subject for k, n, v, subject in granted if v == "publish" and (k, n) != (kind, name)}
        own = {subject for k, n, v, subject in granted if v == "publish" and (k, n) == (kind, name)}
        assert len(others - own) > 20


def _deaf(row):
    return set() if row.subscriber == "both" else {"gateway", "worker"} - {row.subscriber}


def _any(pattern):
    return f"{subjects.PREFIX}.{pattern.format(gid='*', wid='*')}"


@pytest.mark.parametrize(
    ("kind", "verb", "wide"),
    [
        ("worker", "subscribe", "ef.w.*.job.*"),
        ("worker", "subscribe", ">"),
        ("worker", "publish", "ef.g.*.f.*"),
        ("worker", "publish", "_INBOX.>"),
        ("gateway", "subscribe", "ef.g.*.f.*"),
        ("gateway", "publish", "ef.usage.g.*"),
        ("gateway", "publish", "$JS.API.STREAM.CREATE.*"),
        ("gateway", "publish", "$JS.API.>"),
        ("provision", "subscribe", "_INBOX.>"),
    ],
)
async def test_one_permission_too_wide_is_noticed(loosened, monkeypatch, kind, verb, wide):
    """The control: what `test_everything_in_the_table_...` finds when the configuration is wrong."""
    extra = subjects.Right(kind, verb, wide, "control")
    monkeypatch.setattr("shared.permissions.RIGHTS", (*subjects.RIGHTS, extra))
    await reconfigure(loosened)
    found = await breaches(loosened)
    assert any((k, v) == (kind, verb) and allowed for k, _, v, _, allowed in found)
    most = wide.removesuffix("*").removesuffix(">") + ">"  # see test_nothing_lies_below_a_last_name
    assert [one for one in found if one[0] != kind or one[2] != verb or not covers(most, one[3])] == []


async def test_nothing_lies_below_a_last_name(server):
    """nats-server lets who may hear `a.*` subscribe to `a.>`: so no subject may continue another one."""
    probe = await Probe.of(server, "gateway", "g1")
    assert await probe.subscribe("ef.ann.>")
    await probe.close()
    every = {subject for _, subject, _ in concrete()} | {subject for *_, subject in entitled()}
    assert not [(short, long) for short in every for long in every if long.startswith(f"{short}.")]


async def test_one_permission_too_few_is_noticed(loosened, monkeypatch):
    kept = tuple(row for row in subjects.TABLE if row.carries != "Cancel")
    monkeypatch.setattr("shared.permissions.TABLE", kept)
    await reconfigure(loosened)
    found = await breaches(loosened)
    assert {(kind, verb) for kind, _, verb, _, _ in found} == {("gateway", "publish"), ("worker", "subscribe")}
    assert not any(allowed for *_, allowed in found)


async def test_the_very_patterns_of_the_list_can_be_subscribed_and_queued(server):
    for kind, name in EVERYBODY:
        probe = await Probe.of(server, kind, name)
        for pattern in permissions(kind, name).subscribe:
            assert await probe.subscribe(pattern), (name, pattern)
        await probe.close()


async def test_what_is_published_reaches_who_listens(server):
    """The table end to end: the owner of each subject says something on it, the one it is meant for hears it."""
    probes = {(kind, name): await Probe.of(server, kind, name) for kind, name in WANTED}
    for (kind, name), probe in probes.items():
        for pattern in permissions(kind, name).subscribe:
            await probe.listen(pattern)
    granted = entitled()
    for row, subject, names in concrete():
        speaker = next(one for one in WANTED if (*one, "publish", subject) in granted and names[one[0]] == one[1])
        for probe in probes.values():
            probe.messages.clear()
        assert await probes[speaker].publish(subject, row.carries.encode())
        for who, probe in probes.items():
            await probe.publish(f"_INBOX.g1.e1.j.{who[1]}.1" if who[0] == "worker" else f"ef.cnt.{who[1]}")
            heard = (subject, row.carries.encode()) in probe.messages
            assert heard == ((*who, "subscribe", subject) in granted), (who, subject)
    for probe in probes.values():
        await probe.close()


@pytest.mark.parametrize(
    "body", BODIES, ids=[next(iter(body.keys() - {"name", "subjects"}), "plain") for body in BODIES]
)
@pytest.mark.parametrize("who", WANTED, ids=[name for _, name in WANTED])
async def test_no_stream_bucket_or_consumer_can_be_made(server, who, body):
    probe = await Probe.of(server, *who)
    verbs = ("STREAM.CREATE.STOLEN", f"STREAM.UPDATE.{STREAM}", f"CONSUMER.CREATE.{STREAM}.spy")
    taken = [await probe.publish(f"$JS.API.{verb}", json.dumps(body).encode(), "_INBOX.g1.e1.j.w1.1") for verb in verbs]
    await probe.close()
    assert taken == [False, False, False]
    assert await _names(server, "STREAM.NAMES") == {"streams": [STREAM]}
    assert await _names(server, f"CONSUMER.NAMES.{STREAM}") == {"consumers": []}


async def _names(server, what):
    probe = await Probe.of(server, "provision", "provision")
    await probe.listen("_INBOX.provision.>")
    await probe.publish(f"$JS.API.{what}", b"", "_INBOX.provision.names")
    reply = json.loads(await probe.heard())
    await probe.close()
    return {key: reply[key] or [] for key in ("streams", "consumers") if key in reply}


async def test_the_hostile_list_is_what_a_thief_would_ask_for():
    """If `provision`, which may, could not do it either, the refusals above would prove nothing."""
    assert all(covers("$JS.API.>", f"$JS.API.{end}") for end in API)
    mine = permissions("provision", "provision")
    assert not any(covers(have, want) for want in ALWAYS["publish"] for have in mine.publish)
    assert not any(covers(have, want) for want in ALWAYS["subscribe"] for have in mine.subscribe)
