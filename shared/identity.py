"""A process's identity on the bus: a folder with an NKey and a client certificate, as `evenflow nats` writes it.

    worker-w1/             0700
        nkey.seed          0600  who it is: the server's permissions are written for this key
        nkey.pub                 the public half
        certificate.pem          lets it through the TLS handshake
        key.pem            0600
        ca.pem                   whom it believes to be the server

Only paths leave this module: the key is read by the NATS client, at each connection.
"""

import ssl
from pathlib import Path

import msgspec

from shared.errors import SettingsError
from shared.subjects import Kind

SEED = "nkey.seed"
PUBLIC = "nkey.pub"
CERTIFICATE = "certificate.pem"
KEY = "key.pem"
AUTHORITY = "ca.pem"
FILES = (SEED, PUBLIC, CERTIFICATE, KEY, AUTHORITY)


class Identity(msgspec.Struct, frozen=True):
    """Where the files of one identity are."""

    folder: Path

    @property
    def seed(self) -> Path:
        """File with the secret NKey."""
        return self.folder / SEED

    def context(self) -> ssl.SSLContext:
        """A TLS 1.3 client that shows its certificate and believes only servers of its own authority.

        Raises:
            SettingsError: a file is missing, unreadable or not what its name says.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(self.folder / AUTHORITY)
            context.load_cert_chain(self.folder / CERTIFICATE, self.folder / KEY, _no_password)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"nats.identities: cannot use {self.folder}: {error}") from error
        return context


def folder_name(kind: Kind, name: str) -> str:
    """The name of an identity's folder: `worker-w1`, and `provision` for the one that is called as its kind."""
    return kind if kind == name else f"{kind}-{name}"


def find_identity(identities: str, kind: Kind, name: str) -> Identity | None:
    """The identity that a process takes from the directory `identities`; `None` where the setting is empty.

    Raises:
        SettingsError: the directory has no such folder, or the folder is not whole.
    """
    if not identities:
        return None
    folder = Path(identities).absolute() / folder_name(kind, name)
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        what = "is missing" if len(missing) == len(FILES) else f"lacks {', '.join(missing)}"
        raise SettingsError(f"nats.identities: {folder} {what}; `evenflow nats add-{kind} {name}` makes it")
    return Identity(folder)


def _no_password() -> str:
    raise SettingsError("nats.identities: the private key must not be encrypted")
