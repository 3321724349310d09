"""What the permission tests stand on: a bare NATS connection that tells what it was refused, and what should be.

`entitled` says who may do what from the rows of the table, name by name, without the wildcards and without the code
that the server's configuration is made with: the two must agree.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import re
import ssl
import subprocess
from pathlib import Path

import nkeys

from gateway.up import identities, nats_config, nats_server
from shared.identity import Identity, find_identity
from shared.settings import NatsSettings
from shared.subjects import PREFIX, TABLE

GATEWAYS, WORKERS = ("g1", "g2"), ("w1", "w2")
WANTED = [("gateway", name) for name in GATEWAYS] + [("worker", name) for name in WORKERS]
EVERYBODY = [("provision", "provision"), *WANTED]
STREAM = "USAGE"


class Refused(Exception):  # noqa: N818
    """The server closed the door; the message says how."""


class Probe:
    """One connection, spoken by hand: every SUB and PUB is followed by a PING, so that a refusal is seen at once."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self._sids = itertools.count(1)
        self.messages = []

    @classmethod
    async def open(cls, port, context, seed=None, public=None):
        """Connect with that TLS context; `seed` signs the nonce, for `public` or the seed's own public key."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        except (OSError, EOFError) as error:
            raise Refused(repr(error)) from error
        probe = cls(reader, writer)
        try:
            info = json.loads((await reader.readuntil(b"\r\n")).partition(b" ")[2])
            hello = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
            if seed is not None:
                key = nkeys.from_seed(bytearray(seed))
                signature = base64.b64encode(key.sign(info["nonce"].encode())).decode()
                hello |= {"nkey": public or key.public_key.decode(), "sig": signature}
            writer.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\n")
            await probe._settle()
        except (OSError, EOFError, Refused) as error:
            await probe.close()
            raise Refused(repr(error)) from error
        return probe

    @classmethod
    async def of(cls, server, kind, name):
        identity = find_identity(str(server.identities), kind, name)
        return await cls.open(server.port, identity.context(), identity.seed.read_bytes().strip())

    async def subscribe(self, subject, queue=""):
        """Whether the server let us listen; the subscription ends at once."""
        sid = next(self._sids)
        self._writer.write(f"SUB {subject} {queue} {sid}\r\n".encode())
        allowed = not await self._settle()
        self._writer.write(f"UNSUB {sid}\r\n".encode())
        return allowed

    async def listen(self, subject):
        """Subscribe and stay so."""
        self._writer.write(f"SUB {subject} {next(self._sids)}\r\n".encode())
        assert not await self._settle(), subject

    async def publish(self, subject, body=b"", reply=""):
        """Whether the server took it."""
        self._writer.write(f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n")
        return not await self._settle()

    async def _settle(self):
        """Until the PONG to our PING; returns the errors that came before it, and keeps the messages."""
        self._writer.write(b"PING\r\n")
        await self._writer.drain()
        errors = []
        while (line := await asyncio.wait_for(self._reader.readuntil(b"\r\n"), 10)) != b"PONG\r\n":
            if line.startswith(b"-ERR"):
                errors.append(line.decode().strip())
                if b"Permissions" not in line:
                    raise Refused(line.decode().strip())
            elif line.startswith((b"MSG", b"HMSG")):
                parts = line.split()
                head = int(parts[-2]) if line.startswith(b"HMSG") else 0
                body = (await self._reader.readexactly(int(parts[-1]) + 2))[head:-2]
                self.messages.append((parts[1].decode(), body))
            elif line.startswith(b"PING"):
                self._writer.write(b"PONG\r\n")
        return errors

    async def heard(self, wanted=lambda _body: True):
        """Wait for a message that is `wanted`; returns its body."""
        for _ in range(500):
            await self._settle()
            for _, body in self.messages:
                if wanted(body):
                    return body
            await asyncio.sleep(0.01)
        raise AssertionError(f"not heard; only {self.messages}")

    async def cut_off(self):
        """Return once the server has closed the connection; fails if it does not."""
        with contextlib.suppress(Refused, ConnectionError, asyncio.IncompleteReadError):
            for _ in range(500):
                await self._settle()
                await asyncio.sleep(0.01)
            raise AssertionError("still connected")

    async def close(self):
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def running(directory: Path):
    """A NATS server with the configuration that `evenflow up` would start it with, and a stream made by `provision`."""
    server = nats_server.prepare(NatsSettings(directory=str(directory / "nats")), WANTED, print)
    with (directory / "nats.log").open("wb") as log:
        process = subprocess.Popen([server.binary, "-c", "server.conf"], cwd=server.directory, stderr=log)
    try:
        await nats_server.wait_until_ready(server, 20)
        maker = await Probe.of(server, "provision", "provision")
        await maker.listen("_INBOX.provision.>")
        made = json.dumps({"name": STREAM, "subjects": ["ef.usage.>"], "allow_direct": True}).encode()
        assert await maker.publish(f"$JS.API.STREAM.CREATE.{STREAM}", made, "_INBOX.provision.made")
        await maker.close()
        yield server
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 20)


def concrete():
    """Every subject of the table for every pair of names, with its row."""
    for row in TABLE:
        for gid, wid in itertools.product(GATEWAYS, WORKERS):
            yield row, f"{PREFIX}.{row.pattern.format(gid=gid, wid=wid)}", {"gateway": gid, "worker": wid}


def entitled():
    """{(kind, name, verb, subject)} of all that the table grants, by name."""
    granted = set()
    for row, subject, names in concrete():
        named = set(re.findall(r"\{([gw])id\}", row.pattern))
        for kind, name in WANTED:
            mine = names[kind] == name or kind[0] not in named
            if row.publisher == kind and mine:
                granted.add((kind, name, "publish", subject))
            if row.subscriber in (kind, "both") and (mine or row.publisher == kind):
                granted.add((kind, name, "subscribe", subject))
    for kind, name in EVERYBODY:
        granted.add((kind, name, "subscribe", f"_INBOX.{name}.e1.x"))
        if kind == "gateway":
            granted.add((kind, name, "publish", f"$JS.API.DIRECT.GET.{STREAM}"))  # reads the records, changes nothing
        if kind == "worker":
            answers = {gid: f"_INBOX.{gid}.e1.j.{name}.7" for gid in GATEWAYS}
            granted |= {(kind, name, "publish", subject) for subject in answers.values()}
            granted |= {("gateway", gid, "subscribe", subject) for gid, subject in answers.items()}
    return granted


API = (
    "STREAM.CREATE.STOLEN",
    f"STREAM.UPDATE.{STREAM}",
    f"STREAM.DELETE.{STREAM}",
    f"STREAM.PURGE.{STREAM}",
    f"STREAM.MSG.GET.{STREAM}",
    f"STREAM.MSG.DELETE.{STREAM}",
    f"STREAM.SNAPSHOT.{STREAM}",
    f"STREAM.RESTORE.{STREAM}",
    f"STREAM.INFO.{STREAM}",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.TEMPLATE.CREATE.STOLEN",
    f"CONSUMER.CREATE.{STREAM}",
    f"CONSUMER.CREATE.{STREAM}.spy",
    f"CONSUMER.CREATE.{STREAM}.spy.ef.usage.>",
    f"CONSUMER.DURABLE.CREATE.{STREAM}.spy",
    f"CONSUMER.MSG.NEXT.{STREAM}.spy",
    f"CONSUMER.DELETE.{STREAM}.spy",
    f"CONSUMER.NAMES.{STREAM}",
    f"DIRECT.GET.{STREAM}",
    f"DIRECT.GET.{STREAM}.ef.usage.g.g1",
    "INFO",
    "ACCOUNT.PURGE.$G",
    "META.LEADER.STEPDOWN",
    "SERVER.REMOVE",
)
"""Ends of `$JS.API.`: with one of them a process could copy, redirect or destroy what others said."""

BODIES = (
    {"name": "STOLEN", "subjects": ["ef.w.>"]},
    {"name": "STOLEN", "subjects": ["stolen.x"], "republish": {"src": ">", "dest": "ef.w.w1.job.g1"}},
    {"name": "STOLEN", "mirror": {"name": STREAM}},
    {"name": "STOLEN", "sources": [{"name": STREAM}]},
    {"name": "STOLEN", "subjects": ["$KV.STOLEN.>"], "allow_rollup_hdrs": True},
    {"stream_name": STREAM, "config": {"deliver_subject": "_INBOX.g2.push", "ack_policy": "none"}},
)
"""What would be asked for: streams that overhear, republish, mirror, source, a bucket, and a consumer that pushes."""

ALWAYS = {
    "subscribe": (
        *(
            ">",
            "*",
            "*.>",
            "*.*",
            "*.*.*",
            "*.*.*.*.*",
            "ef.>",
            "*.w.>",
            "ef.*",
            "ef.*.*",
            "ef.w.>",
            "ef.w.*.>",
            "ef.g.>",
        ),
        *("ef.w.*.job.*", "ef.w.*.job.>", "ef.*.w1.job.g1", "ef.g.*.f.*", "ef.usage.>", "ef.offer.>", "ef.other", "ef"),
        *("_INBOX.>", "_INBOX.*", "_INBOX.*.>", "_INBOX.*.*.j.>", "_INBOX.stranger.>", "_R_.>", "_REQS.>", "other.x"),
        *(
            "$SYS.>",
            "$SYS.ACCOUNT.>",
            "$SYS.REQ.>",
            "$JS.>",
            "$JS.API.>",
            "$JS.EVENT.>",
            "$JS.ACK.>",
            "$KV.>",
            "$KV.a.b",
        ),
        *("$O.>", "$G.>", "$SRV.>", "$SRV.PING", "$NRG.>", "$MQTT.>", "$JSC.>", "$LDS.>", "_GR_.>", "$GNR.>"),
    ),
    "publish": (
        *("ef.other", "ef", "other.x", "_R_.x", "_REQS.x", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ"),
        *(
            "$SYS.REQ.USER.INFO",
            "$SYS.ACCOUNT.A.CONNECT",
            "$SRV.PING",
            "$JS.ACK.USAGE.spy.1.1.1.1.1",
            "$JS.FC.USAGE.spy.x",
        ),
        *(
            "$JS.EVENT.ADVISORY.x",
            "$JS.SNAPSHOT.ACK.USAGE.x",
            "$KV.BUCKET.key",
            "$O.BUCKET.M.x",
            "$NRG.V.x",
            "$MQTT.JSA.x",
        ),
        *(
            "_INBOX.stranger.e1.x",
            "_INBOX.provision.e1.x",
            "_INBOX.g1.e1.c.w1",
            "_INBOX.w1.e1.f.g1",
            "_INBOX.w2.e1.f.g2",
        ),
        *("_INBOX.g1.e1.j.stranger.7", "_INBOX.g1.e1.j.w1.7.more", "_INBOX.g1.j.w1.7", "ef.w.w1.job.stranger"),
        *("ef.usage.g.stranger", "ef.usage.g", "ef.usage.g.g1.x", "ef.ann.stranger", "quota.t1.w1", "ef.w.w1.job.g1.x"),
    ),
}
"""Refused to everybody, whoever they are."""


async def breaches(server):
    """Everything in which the server's answers differ from what the table says: (kind, name, verb, subject, allowed)."""
    granted, found = entitled(), []
    subjects = {subject for _, subject, _ in concrete()} | {subject for _, _, _, subject in granted}
    asked = {(verb, subject) for verb in ("publish", "subscribe") for subject in subjects}
    asked |= {(verb, subject) for verb, all_ in ALWAYS.items() for subject in all_}
    asked |= {("publish", f"$JS.API.{end}") for end in API}
    for kind, name in EVERYBODY:
        probe = await Probe.of(server, kind, name)
        try:
            for verb, subject in sorted(asked):
                if kind == "provision" and subject.startswith("$JS.API.") and verb == "publish":
                    continue  # its work: what it may do there is not for the table to say
                allowed = await (probe.publish if verb == "publish" else probe.subscribe)(subject)
                if allowed != ((kind, name, verb, subject) in granted):
                    found.append((kind, name, verb, subject, allowed))
        finally:
            await probe.close()
    return found


def context_of(identity: Identity, *, certificate=True) -> ssl.SSLContext:
    """The identity's TLS context, or one that believes the same servers but shows no certificate."""
    if certificate:
        return identity.context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(identity.folder / "ca.pem")
    return context


async def reconfigure(server):
    """Give the server the list of users with the permissions as they are patched now."""
    await reload(server, nats_config.identities_conf(identities.listed(server.directory)))


async def reload(server, text):
    """Replace the list of users, and wait until the server has it."""
    (server.directory / nats_config.IDENTITIES).write_text(text)
    log = server.directory.parent / "nats.log"
    before = log.read_text().count("Reloaded server configuration")
    assert identities.reload(server.directory)
    for _ in range(500):
        if log.read_text().count("Reloaded server configuration") > before:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(log.read_text())
