"""Certificates for development: an authority of one's own, and a certificate of it for the tenants' door.

    <directory>/
        authority/       0700
            ca.pem             what clients are told to trust
            key.pem      0600  whoever has it can pass for any server with those clients
        server/          0700
            certificate.pem
            key.pem      0600

Names are only ever added: one that an earlier run was given stays until `server/` is removed.
"""

import ipaddress
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gateway.up.authority import end_of, names_of, open_authority
from gateway.up.files import exclusive, private_directory
from shared.errors import StartError

NAMES = ("localhost", "127.0.0.1", "::1")
DAYS = 825
"""The longest life that every common client puts up with, for authorities that a user added."""
_NAME = "Evenflow development authority"
_MOST_CHARS = 253
# A host name in ASCII, or a wildcard below one; the last label is no number, as that would be a mistyped address.
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*(?!\d+$){_LABEL}", re.ASCII)


class DevCertificates(msgspec.Struct, frozen=True, kw_only=True):
    """What is there now. `made` tells whether the certificate is new; `ends` is when it has to be made anew."""

    authority: Path
    certificate: Path
    key: Path
    names: tuple[str, ...]
    ends: datetime
    made: bool


def keep_dev_certificates(directory: Path, names: Iterable[str] = (), now: datetime | None = None) -> DevCertificates:
    """Make what is missing in `directory`, for `NAMES` and `names`; renew the certificate before it ends.

    A certificate in use may be replaced: the gateway looks at its files.

    Raises:
        StartError: a name is none, the directory is no directory or cannot be written, or the authority is broken, has
            ended, or is none.
    """
    now = now or datetime.now(UTC)
    wanted = dict.fromkeys([*NAMES, *map(_checked, names)])
    if not directory.is_dir():  # one that is there may hold other things, for others to read
        private_directory(directory)
    kept = private_directory(directory / "authority")
    with exclusive(kept / "lock", wait=True):
        authority = open_authority(kept, now, _NAME)
        authority.check()
        server = private_directory(directory / "server")
        certificate, key = server / "certificate.pem", server / "key.pem"
        wanted |= dict.fromkeys(_known(certificate))
        made = authority.keep(certificate, key, "evenflow", list(wanted), days=DAYS)
    return DevCertificates(
        authority=kept / "ca.pem",
        certificate=certificate,
        key=key,
        names=tuple(wanted),
        ends=end_of(certificate),
        made=made,
    )


def _checked(name: str) -> str:
    """Return a host name or address in its usual spelling."""
    try:
        if "%" not in name:  # a zone means something on one machine only
            return str(ipaddress.ip_address(name))
    except ValueError:
        pass  # not an address: perhaps a name
    lower = name.lower()
    if len(lower) > _MOST_CHARS or not _HOST.fullmatch(lower):
        raise StartError(f"{name!r} is neither a host name (in ASCII) nor an address")
    return lower


def _known(certificate: Path) -> list[str]:
    """Return the names of an earlier run; none if the file is missing or no certificate: it will be made anew."""
    try:
        return names_of(certificate)
    except StartError:
        return []
