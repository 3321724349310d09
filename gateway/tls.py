"""TLS at the tenants' door: one context for the life of the process, its certificate replaced under it.

A live connection keeps the session it has; the next handshake gets what was loaded last. A new pair of files is first
tried in a context of its own, so that a broken one leaves the old one in place. Who speaks plain HTTP is told not to.
"""

import asyncio
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from gateway.http import problems
from gateway.steps.accept import uuid7
from shared.errors import InvalidRequestError, SettingsError
from shared.settings import TlsSettings

log = structlog.get_logger("tls")

LOOK_S = 2.0
_PLAIN_HTTP = frozenset({"HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})
"""What OpenSSL calls a first record that begins with `GET `, `HEAD `, `POST `, `PUT ` or `CONNE`."""


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """A server context: TLS 1.2 or newer, HTTP/1.1, client certificates demanded if `client_ca` is set.

    Raises SettingsError naming the key for files that are missing, unreadable or do not belong together.
    """
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    with copied(settings) as pair:
        pair.load(context)
    if settings.client_ca:
        try:
            context.load_verify_locations(settings.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"tls.client_ca: cannot use {settings.client_ca}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class _Handshake(ssl.SSLObject):
    """Answers plain HTTP in plain HTTP, where OpenSSL by itself hangs up without a word."""

    outgoing: ssl.MemoryBIO
    told: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """As `ssl.SSLObject`."""
        if self.told is not None:
            raise self.told
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            if error.reason not in _PLAIN_HTTP:
                raise
            self.told = error
            self.outgoing.write(_use_https())
            # Only a handshake that goes on has its outgoing bytes sent. What comes next ends it, or its timeout does.
            raise ssl.SSLWantReadError from None


class _Context(ssl.SSLContext):
    sslobject_class = _Handshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(made, _Handshake):
            made.outgoing = outgoing
        return made


def _use_https() -> bytes:
    error = InvalidRequestError("This port speaks TLS only: use https:// instead of http://.", code="https_required")
    status, headers, body = problems.render(error, uuid7())
    lines = [name + b": " + value + b"\r\n" for name, value in [*headers, (b"connection", b"close")]]
    return b"".join([b"HTTP/1.1 %d Bad Request\r\n" % status, *lines, b"\r\n", body])


class Pair:
    """A certificate chain and its key, proven to belong together."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key

    def load(self, context: ssl.SSLContext) -> None:
        """Into `context`. Quick, and never from another thread: OpenSSL may be reading the context."""
        context.load_cert_chain(self._certificate, self._key, _no_password)


@contextmanager
def copied(settings: TlsSettings) -> Iterator[Pair]:
    """A private copy of the pair, tried out: whoever is writing the files cannot break what is loaded from it.

    Raises SettingsError, naming the key, if the files are missing, unreadable or do not belong together.
    """
    with tempfile.TemporaryDirectory(prefix="evenflow-tls-") as folder:
        names = [("tls.certificate", settings.certificate), ("tls.key", settings.key)]
        copies = []
        for key, name in names:
            try:
                copies.append(Path(shutil.copyfile(name, Path(folder) / key)))
            except OSError as error:
                raise SettingsError(f"{key}: cannot read {name}: {error.strerror}") from error
        pair = Pair(*copies)
        try:
            pair.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except ssl.SSLError as error:
            raise SettingsError(
                f"tls.certificate: {settings.certificate} and {settings.key} are no usable pair: {error.reason}"
            ) from error
        yield pair


def _no_password() -> str:
    """An encrypted key would otherwise make OpenSSL ask on the terminal, and wait."""
    raise SettingsError("tls.key: is encrypted; give an unencrypted key, readable by the gateway only")


class CertificateWatch:
    """Loads the pair again when its files change, or when told to (SIGHUP)."""

    def __init__(self, context: ssl.SSLContext, settings: TlsSettings) -> None:
        self._context = context
        self._settings = settings
        self._seen = self._stamp()
        self._told = asyncio.Event()

    def reload(self) -> None:
        """Load now, changed or not."""
        self._told.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look(forced=await self._pause())

    def look(self, *, forced: bool = False) -> bool:
        """Load the pair if its files changed, or in any case; False if nothing was loaded."""
        stamp = self._stamp()
        if not forced and stamp == self._seen:
            return False
        self._seen = stamp
        try:
            with copied(self._settings) as pair:
                pair.load(self._context)
        except SettingsError as error:
            log.warning("certificate_kept", error=str(error))
            return False
        log.info("certificate_loaded", certificate=self._settings.certificate)
        return True

    async def _pause(self) -> bool:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._told.wait()
        except TimeoutError:
            return False
        self._told.clear()
        return True

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_identity(Path(name)) for name in (self._settings.certificate, self._settings.key))


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Which file that is: a renamed-over one has another inode even if time and size agree."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
