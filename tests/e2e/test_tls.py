"""TLS at the tenants' door: versions, reload under live streams, broken pairs, client certificates."""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from gateway.tls import CertificateWatch, copied, make_context
from shared.errors import SettingsError
from shared.settings import TlsSettings
from tests.e2e.stack import Stack, running

STREAMS = 50


def write_pair(folder: Path, ca: trustme.CA, name: str = "pair") -> tuple[Path, Path]:
    """A fresh certificate for loopback, each file renamed into place as a certificate tool would."""
    issued = ca.issue_cert("localhost", "127.0.0.1")
    chain, key = folder / f"{name}.crt", folder / f"{name}.key"
    for path, blobs in ((chain, issued.cert_chain_pems), (key, [issued.private_key_pem])):
        draft = path.with_suffix(".new")
        draft.write_bytes(b"".join(blob.bytes() for blob in blobs))
        draft.replace(path)
    return chain, key


def trusting(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


def served_certificate(port: int, context: ssl.SSLContext) -> bytes:
    raw = socket.create_connection(("127.0.0.1", port), 5)
    with context.wrap_socket(raw, server_hostname="localhost") as tls:
        certificate = tls.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    chain, key = write_pair(folder, ca)
    with running(
        folder,
        WORKERS__0__ENGINE="null",
        WORKERS__0__NULL_MODE="pace",
        WORKERS__0__NULL_RATE="20",
        WORKERS__0__SLOTS=str(STREAMS + 4),
        LIMITS__TENANT_STREAMS=str(STREAMS + 4),
        TLS__CERTIFICATE=str(chain),
        TLS__KEY=str(key),
    ) as stack:
        stack.verify = trusting(ca)
        yield stack


class Streaming(threading.Thread):
    """One streamed answer over one TLS connection, read to its end."""

    def __init__(self, stack: Stack, tokens: int) -> None:
        super().__init__(daemon=True)
        assert isinstance(stack.verify, ssl.SSLContext)
        self.connection = http.client.HTTPSConnection("127.0.0.1", stack.port, context=stack.verify, timeout=30)
        self.body = json.dumps(
            {
                "model": "null",
                "messages": [{"role": "user", "content": "x"}],
                "stream": True,
                "max_tokens": tokens,
            }
        )
        self.headers = {**stack.headers, "content-type": "application/json"}
        self.began = threading.Event()
        self.text = b""
        self.start()

    def run(self) -> None:
        with contextlib.closing(self.connection):
            self.connection.request("POST", "/v1/chat/completions", self.body, self.headers)
            response = self.connection.getresponse()
            for line in response:
                self.text += line
                self.began.set()

    @property
    def chunks(self) -> int:
        return self.text.count(b'"content":"@')


def wait_for_another(stack: Stack, old: bytes, within_s: float = 10.0) -> bytes:
    assert isinstance(stack.verify, ssl.SSLContext)
    until = time.monotonic() + within_s
    while (now := served_certificate(stack.port, stack.verify)) == old and time.monotonic() < until:
        time.sleep(0.05)
    return now


def test_a_certificate_swapped_under_live_streams_cuts_none(stack: Stack, ca: trustme.CA) -> None:
    assert isinstance(stack.verify, ssl.SSLContext)
    before = served_certificate(stack.port, stack.verify)
    streams = [Streaming(stack, tokens=80) for _ in range(STREAMS)]
    assert all(stream.began.wait(20) for stream in streams)
    write_pair(stack.directory, ca)
    after = wait_for_another(stack, before)
    assert after != before, "the new certificate was not served within 10 s of its files changing"
    assert any(stream.is_alive() for stream in streams), "the swap must happen under live streams"
    for stream in streams:
        stream.join(30)
    assert [stream.chunks for stream in streams] == [80] * STREAMS
    assert all(stream.text.endswith(b"data: [DONE]\n\n") for stream in streams)


def test_a_broken_pair_leaves_the_old_one_in_place_and_sighup_loads_a_good_one_at_once(
    stack: Stack, ca: trustme.CA
) -> None:
    assert isinstance(stack.verify, ssl.SSLContext)
    before = served_certificate(stack.port, stack.verify)
    chain, key = stack.directory / "pair.crt", stack.directory / "pair.key"
    good = chain.read_bytes()
    for broken in (b"", good[: len(good) // 2], b"not a certificate"):
        chain.write_bytes(broken)
        (gateway,) = stack.pids("gateway.cli")
        os.kill(gateway, signal.SIGHUP)
        assert served_certificate(stack.port, stack.verify) == before
    kept = stack.directory / ".evenflow" / "log" / "gateway.log"
    until = time.monotonic() + 10
    while "certificate_kept" not in kept.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert "certificate_kept" in kept.read_text(), "the refusal must be in the log"
    write_pair(stack.directory, ca, "other")
    key.write_bytes((stack.directory / "other.key").read_bytes())  # for a moment the two do not belong together
    chain.write_bytes((stack.directory / "other.crt").read_bytes())
    assert wait_for_another(stack, before) != before


def test_old_tls_and_plain_http_are_refused(stack: Stack, ca: trustme.CA) -> None:
    old = trusting(ca)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    assert served_certificate(stack.port, old)
    with socket.create_connection(("127.0.0.1", stack.port), 5) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" not in raw.recv(4096)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    chain, key = stack.directory / "pair.crt", stack.directory / "pair.key"
    made = make_context(TlsSettings(certificate=str(chain), key=str(key)))
    assert made.minimum_version == context.minimum_version


def test_client_certificates_are_demanded_where_an_authority_is_named(tmp_path: Path, ca: trustme.CA) -> None:
    clients = trustme.CA()
    chain, key = write_pair(tmp_path, ca)
    authority = tmp_path / "clients.pem"
    clients.cert_pem.write_to_path(str(authority))
    server = make_context(TlsSettings(certificate=str(chain), key=str(key), client_ca=str(authority)))
    known, stranger = trusting(ca), trusting(ca)
    clients.issue_cert("worker").configure_cert(known)
    trustme.CA().issue_cert("worker").configure_cert(stranger)
    assert handshake(server, known)
    assert not handshake(server, stranger)
    assert not handshake(server, trusting(ca))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """In memory, both sides until they agree or one refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
    ]
    agreed = [False, False]
    for _ in range(10):
        for index, end in enumerate(ends):
            try:
                end.do_handshake()
                agreed[index] = True
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return all(agreed)


@pytest.mark.parametrize("wrong", ["certificate", "key", "client_ca"])
def test_files_that_are_missing_are_named(tmp_path: Path, ca: trustme.CA, wrong: str) -> None:
    chain, key = write_pair(tmp_path, ca)
    names = {"certificate": str(chain), "key": str(key), wrong: str(tmp_path / "absent.pem")}
    with pytest.raises(SettingsError, match=rf"^tls\.{wrong}: .*absent\.pem"):
        make_context(TlsSettings(**names))


def test_a_key_of_another_certificate_or_an_encrypted_one_is_refused(tmp_path: Path, ca: trustme.CA) -> None:
    chain, _ = write_pair(tmp_path, ca)
    _, other = write_pair(tmp_path, ca, "other")
    with (
        pytest.raises(SettingsError, match="no usable pair"),
        copied(TlsSettings(certificate=str(chain), key=str(other))),
    ):
        pass
    from cryptography.hazmat.primitives import serialization

    plain = serialization.load_pem_private_key(other.read_bytes(), None)
    other.write_bytes(
        plain.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(SettingsError, match="encrypted"), copied(TlsSettings(certificate=str(chain), key=str(other))):
        pass


async def test_the_watch_loads_only_what_changed(tmp_path: Path, ca: trustme.CA) -> None:
    chain, key = write_pair(tmp_path, ca)
    settings = TlsSettings(certificate=str(chain), key=str(key))
    watch = CertificateWatch(make_context(settings), settings)
    assert not watch.look()
    write_pair(tmp_path, ca)
    assert watch.look()
    assert not watch.look()
    chain.write_bytes(b"broken")
    assert not watch.look()
