"""Who gets into the bus at all: TLS first, a certificate of its authority, and the NKey of the identity one claims."""

import asyncio
import os
import signal

import pytest

from gateway.up import identities, nats_config, nats_server
from shared.identity import find_identity
from shared.settings import NatsSettings
from tests.bus.probes import WANTED, Probe, Refused, context_of, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def w1(server):
    return find_identity(str(server.identities), "worker", "w1")


def seed_of(identity):
    return identity.seed.read_bytes().strip()


async def test_without_a_certificate_nobody_gets_in(server, w1):
    with pytest.raises(Refused, match=r"CERTIFICATE_REQUIRED|IncompleteRead|Reset"):
        await Probe.open(server.port, context_of(w1, certificate=False), seed_of(w1))


async def test_a_certificate_of_another_authority_does_not_get_in(server, w1, tmp_path):
    other = nats_server.prepare(NatsSettings(directory=str(tmp_path / "nats")), WANTED, print)
    stranger = find_identity(str(other.identities), "worker", "w1")
    context = context_of(w1, certificate=False)
    context.load_cert_chain(stranger.folder / "certificate.pem", stranger.folder / "key.pem")
    with pytest.raises(Refused, match=r"UNKNOWN_CA|BAD_CERTIFICATE|IncompleteRead|Reset"):
        await Probe.open(server.port, context, seed_of(w1))
    with pytest.raises(Refused, match=r"CERTIFICATE_VERIFY_FAILED"):  # and the stranger does not believe our server
        await Probe.open(server.port, stranger.context(), seed_of(stranger))


async def test_the_servers_certificate_is_no_clients(server, w1):
    context = context_of(w1, certificate=False)
    home = server.directory / "server"
    context.load_cert_chain(home / "certificate.pem", home / "key.pem")
    with pytest.raises(Refused, match=r"CERTIFICATE|IncompleteRead|Reset"):
        await Probe.open(server.port, context, seed_of(w1))


async def test_a_clients_certificate_is_no_servers(server, w1):
    async def greet(reader, writer):
        writer.close()

    context = w1.context()
    impostor_tls = type(context)(nats_server.ssl.PROTOCOL_TLS_SERVER)
    impostor_tls.load_cert_chain(w1.folder / "certificate.pem", w1.folder / "key.pem")
    async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=impostor_tls) as impostor:
        with pytest.raises(Refused, match=r"CERTIFICATE_VERIFY_FAILED"):
            await Probe.open(impostor.sockets[0].getsockname()[1], context, seed_of(w1))


async def test_another_identitys_name_needs_its_key(server, w1):
    public = (server.identities / "worker-w2" / "nkey.pub").read_text().strip()
    with pytest.raises(Refused, match="Authorization Violation"):
        await Probe.open(server.port, w1.context(), seed_of(w1), public)


@pytest.mark.parametrize("seed", [None, b"fresh"], ids=["no key", "a key of nobody"])
async def test_a_certificate_alone_is_not_enough(server, w1, seed):
    with pytest.raises(Refused, match="Authorization Violation"):
        await Probe.open(server.port, w1.context(), identities._new_seed().encode() if seed else None)


async def test_added_is_let_in_removed_is_cut_off_and_the_others_stay(tmp_path):
    async with running(tmp_path) as server:
        bystander = await Probe.of(server, "worker", "w1")
        identities.add(server.directory, "worker", "w9")
        assert identities.reload(server.directory)
        newcomer = await _let_in(server, "w9")
        assert await newcomer.publish("ef.ann.w9")
        assert not await newcomer.publish("ef.ann.w1")
        context, seed = (found := find_identity(str(server.identities), "worker", "w9")).context(), seed_of(found)
        identities.remove(server.directory, "w9")
        assert identities.reload(server.directory)
        await newcomer.cut_off()
        with pytest.raises(Refused, match="Authorization Violation"):
            await Probe.open(server.port, context, seed)
        assert await bystander.publish("ef.ann.w1"), "its connection was never closed"
        await newcomer.close()
        await bystander.close()


async def _let_in(server, name):
    async with asyncio.timeout(10):
        while True:
            try:
                return await Probe.of(server, "worker", name)
            except Refused:
                await asyncio.sleep(0.02)


async def test_a_number_in_the_pid_file_that_is_no_server_here_is_not_signalled(tmp_path):
    heard = []
    before = signal.signal(signal.SIGHUP, lambda *_: heard.append(1))
    try:
        (tmp_path / nats_config.PID).write_text(str(os.getpid()))
        assert not identities.reload(tmp_path)
        (tmp_path / nats_config.PID).write_text("999999999")
        assert not identities.reload(tmp_path)
        assert not identities.reload(tmp_path / "nowhere")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == []
