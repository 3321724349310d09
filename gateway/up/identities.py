"""The identities of one bus on disk: made, kept, added, removed; and the server's list of them.

    <directory>/               0700
        authority/             ca.pem, key.pem: see `gateway.up.authority`
        server/                certificate.pem, key.pem of the NATS server
        identities/            one folder for each, see `shared.identity`: what is handed out
            provision/  gateway-g1/  worker-w1/
        identities.conf        0600, made from the folders, included by server.conf
        identities.lock        held while any of this is written

A folder's public key is all that the server needs. Its secrets may be moved to the machine that uses them: a folder
without `nkey.seed` stays in force and is never filled again.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import nkeys

from gateway.up.authority import Authority, open_authority
from gateway.up.files import exclusive, explain, keep_secret, private_directory, read_private, write_private
from gateway.up.nats_config import IDENTITIES, PID, SERVER, Known, identities_conf, server_conf
from shared.errors import StartError
from shared.identity import AUTHORITY, CERTIFICATE, KEY, PUBLIC, SEED, folder_name
from shared.subjects import Kind

PROVISION: tuple[Kind, str] = ("provision", "provision")
_FOLDERS = "identities"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)
_KINDS: tuple[Kind, ...] = ("provision", "gateway", "worker")


def keep(
    directory: Path, wanted: Iterable[tuple[Kind, str]], hosts: Sequence[str], now: datetime | None = None
) -> Path:
    """Make what is missing of authority, server certificate and the `wanted` identities; renew what is about to end.

    `hosts` are the names and addresses under which clients find the server. Returns the directory of the folders.

    Raises:
        StartError: a name is taken by another kind or no name, or a file cannot be read or written.
    """
    with _writing(directory):
        authority = open_authority(directory / "authority", now or datetime.now(UTC))
        server = private_directory(directory / "server")
        authority.keep(server / CERTIFICATE, server / KEY, "nats-server", hosts)
        folders = private_directory(directory / _FOLDERS)
        for kind, name in (PROVISION, *wanted):
            _check(directory, kind, name)
            _keep_one(folders / folder_name(kind, name), authority)
        for known in listed(directory):
            _keep_one(folders / folder_name(known.kind, known.name), authority)
        _write_list(directory)
    return folders


def init(directory: Path, wanted: Iterable[tuple[Kind, str]], hosts: Sequence[str], port: int) -> Path:
    """Make all that a NATS server of one's own needs, listening on every address of its machine.

    A `server.conf` that is there stays as it is: it is the operator's. Returns the directory of the folders.

    Raises:
        StartError: as `keep`.
    """
    folders = keep(directory, wanted, hosts)
    private_directory(directory / "jetstream")
    if not (directory / SERVER).exists():
        note = "Yours to change: `evenflow nats init` writes it only where there is none."
        write_private(directory / SERVER, server_conf(f"0.0.0.0:{port}", note=note))
    return folders


def add(directory: Path, kind: Kind, name: str) -> Path:
    """Add an identity and rewrite the server's list. Returns its folder.

    Raises:
        StartError: there is no bus in `directory`, or the name is taken or no name.
    """
    if not (directory / "authority" / "ca.pem").is_file():
        raise StartError(f"{directory} holds no identities yet: `evenflow nats init` or `evenflow up` makes them")
    with _writing(directory):
        _check(directory, kind, name)
        folder = directory / _FOLDERS / folder_name(kind, name)
        if (folder / PUBLIC).is_file():
            raise StartError(f"{folder} is there already; to give it new keys, remove it first")
        _keep_one(folder, open_authority(directory / "authority", datetime.now(UTC)))
        _write_list(directory)
    return folder


def remove(directory: Path, name: str) -> None:
    """Remove an identity with its secrets: the server shuts it out at its next reload.

    Raises:
        StartError: there is no gateway or worker of that name.
    """
    with _writing(directory):
        known = next((one for one in listed(directory) if one.name == name and one.kind != "provision"), None)
        if known is None:
            raise StartError(f"{directory}: there is no gateway or worker {name!r}")
        folder = directory / _FOLDERS / folder_name(known.kind, known.name)
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise explain(error, str(folder)) from error
        _write_list(directory)


def listed(directory: Path) -> list[Known]:
    """Return every identity that has a folder with a public key, sorted."""
    found = []
    for folder in (directory / _FOLDERS).glob("*/"):
        kind, _, name = folder.name.partition("-")
        public = read_private(folder / PUBLIC)
        if public is not None and kind in _KINDS:
            found.append(Known(next(one for one in _KINDS if one == kind), name or kind, public))
    return sorted(found)


def reload(directory: Path) -> bool:
    """Tell the NATS server that runs in `directory` on this machine to read its configuration again (SIGHUP).

    Connections stay. Returns whether there is such a server.
    """
    with contextlib.suppress(OSError, ValueError):
        pid = int((directory / PID).read_text(encoding="ascii"))
        # The file outlives a server that was killed, and its number may be somebody else's by now.
        home, program = (Path(f"/proc/{pid}/{link}").readlink() for link in ("cwd", "exe"))
        if home == directory.resolve() and program.name.startswith("nats-server"):
            os.kill(pid, signal.SIGHUP)
            return True
    return False


@contextlib.contextmanager
def _writing(directory: Path) -> Iterator[None]:
    private_directory(directory)
    with exclusive(directory / "identities.lock", wait=True):
        yield


def _check(directory: Path, kind: Kind, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise StartError(f"{name!r} is no name: lower-case letters, digits, - and _, at most 63, not - or _ first")
    for known in listed(directory):
        if known.name == name and known.kind != kind:
            raise StartError(f"{name!r} is the name of a {known.kind} already: names, as inboxes, are one's own")


def _keep_one(folder: Path, authority: Authority) -> None:
    private_directory(folder)
    public = read_private(folder / PUBLIC)
    if public is not None and read_private(folder / SEED) is None:
        return  # its secrets have been moved to where they are used
    seed = keep_secret(folder / SEED, _new_seed)
    try:
        mine = nkeys.from_seed(bytearray(seed.encode())).public_key.decode()
    except nkeys.NkeysError as error:
        raise StartError(f"{folder / SEED} holds no NKey") from error
    authority.keep(folder / CERTIFICATE, folder / KEY, folder.name)
    for file, text in ((AUTHORITY, authority.pem), (PUBLIC, f"{mine}\n")):  # the public key last: now it is whole
        if read_private(folder / file) != text.strip():
            write_private(folder / file, text)


def _new_seed() -> str:
    return str(nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER).decode())


def _write_list(directory: Path) -> None:
    write_private(directory / IDENTITIES, identities_conf(listed(directory)))
