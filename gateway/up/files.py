"""What `evenflow up` keeps on disk, and the checks that turn a machine's troubles into one clear line each."""

import errno
import fcntl
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import StartError

_PRIVATE_DIRECTORY = 0o700
_PRIVATE_FILE = 0o600
# Below Linux's default range of ephemeral ports (32768-60999): no outgoing connection can take the port while the
# server that owns it is being restarted.
_PORTS = range(20000, 32000)
_TRIES = 64
LEAST_FREE_BYTES = 128 * 1024 * 1024


def explain(error: OSError, what: str) -> StartError:
    """Return the one line that says which file or port is in the way and what can be done about it."""
    hints = {
        errno.ENOSPC: "the disk is full: free some space and start again",
        errno.EDQUOT: "the disk quota is used up: free some space and start again",
        errno.EACCES: "permission denied: start as the user who owns it, or change its owner",
        errno.EPERM: "permission denied: start as the user who owns it, or change its owner",
        errno.EROFS: "the file system is read-only",
        errno.EADDRINUSE: "the port is taken by another program",
        errno.EADDRNOTAVAIL: "this machine has no such address",
        errno.ENOTDIR: "a file stands where a directory is needed",
        errno.EEXIST: "a file stands where a directory is needed",
    }
    return StartError(f"{what}: {hints.get(error.errno or 0, error.strerror or str(error))}")


def private_directory(path: Path) -> Path:
    """Make `path` a directory that only its owner can enter (0700).

    Raises:
        StartError: it cannot be made, or belongs to someone else.
    """
    try:
        for missing in reversed([path, *path.parents]):
            missing.mkdir(mode=_PRIVATE_DIRECTORY, exist_ok=True)  # `parents=True` would leave the upper ones open
        if stat.S_IMODE(path.stat().st_mode) != _PRIVATE_DIRECTORY:
            path.chmod(_PRIVATE_DIRECTORY)
    except OSError as error:
        raise explain(error, str(path)) from error
    return path


def check_space(directory: Path, least_bytes: int = LEAST_FREE_BYTES) -> None:
    """Refuse a start that would fail half-way: streams, database and logs need some room.

    Raises:
        StartError: fewer than `least_bytes` are free where `directory` lies.
    """
    free = shutil.disk_usage(directory).free
    if free < least_bytes:
        raise StartError(f"{directory}: the disk is full: {free >> 20} MiB are free, {least_bytes >> 20} are needed")


def write_private(path: Path, text: str) -> None:
    """Write `path` whole or not at all, readable by its owner only (0600), and on disk before this returns.

    Raises:
        StartError: the disk is full, or the directory is not ours.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE_FILE)
        try:
            os.fchmod(descriptor, _PRIVATE_FILE)
            with os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) as file:
                file.write(text)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise explain(error, str(path)) from error


def read_private(path: Path) -> str | None:
    """Return the stripped text of `path`, `None` where it is missing or empty; others lose the right to read it.

    Raises:
        StartError: it exists but cannot be read, or is no text.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(_PRIVATE_FILE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explain(error, str(path)) from error
    except UnicodeDecodeError as error:
        raise StartError(f"{path}: is no text file: it has been damaged or replaced") from error
    return text or None


def keep_secret(path: Path, make: Callable[[], str] = lambda: secrets.token_urlsafe(24)) -> str:
    """Return the secret kept in `path`; made, and written before it is used, at the first call."""
    kept = read_private(path)
    if kept is None:
        kept = make()
        write_private(path, kept + "\n")
    return kept


def leave_nothing(directory: Path, worthless: set[Path]) -> None:
    """Remove `directory` if all that it holds is empty directories and `worthless` files; else nothing at all.

    For a start that failed and had made it.
    """
    try:
        found = sorted(directory.rglob("*"), reverse=True)  # what is inside comes before what it is in
        files = {path.absolute() for path in found if not path.is_dir()}
        if not files <= {path.absolute() for path in worthless}:
            return
        for path in found:
            path.rmdir() if path.is_dir() else path.unlink()
        directory.rmdir()
    except OSError as error:
        raise explain(error, str(directory)) from error


@contextmanager
def exclusive(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock on the file `path` for as long as this process lives or the block lasts.

    The kernel gives it back however the process ends, and children do not inherit it (close-on-exec). With `wait` it
    waits its turn: for locks that nobody holds for long.

    Raises:
        StartError: another process holds it; the message names it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
    except OSError as error:
        raise explain(error, str(path)) from error
    try:
        _lock(descriptor, path, wait=wait)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, *, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
        who = f" (process {owner})" if owner else ""
        raise StartError(f"already running here{who}: {path} is locked") from error
    except OSError as error:
        raise explain(error, str(path)) from error


def check_port(host: str, port: int, setting: str) -> None:
    """Make sure that `host:port` can be listened on now.

    Raises:
        StartError: it cannot; the message names the variable that changes it.
    """
    try:
        _bind(host, port)
    except OSError as error:
        told = explain(error, f"{host}:{port}")
        raise StartError(f"{told}; {setting}=PORT chooses another") from error


def port_is_free(host: str, port: int) -> bool:
    """Return whether `host:port` can be listened on now."""
    try:
        _bind(host, port)
    except OSError:
        return False
    return True


def free_port(host: str) -> int:
    """Return a port of `host` that nothing listens on, outside the range of outgoing connections.

    Raises:
        StartError: none was found.
    """
    for _ in range(_TRIES):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        if port_is_free(host, port):
            return port
    raise StartError(f"{host}: found no free port between {_PORTS.start} and {_PORTS.stop - 1}")


def _bind(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # As servers do: connections of an earlier run that linger in TIME_WAIT are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen(1)
