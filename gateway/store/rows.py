"""What the store gives out: frozen rows. Times are milliseconds since 1970, UTC."""

import msgspec

from gateway.core.charging import Totals


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant. `max_streams` bounds its open requests; `None` leaves the bound to the settings."""

    id: str
    name: str
    created_at: int
    disabled_at: int | None
    max_streams: int | None


class KeyRow(msgspec.Struct, frozen=True):
    """A key as people may see it: never the key itself nor its hash. `display` is how it starts."""

    id: str
    tenant_id: str
    tenant_name: str
    name: str
    display: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None


class CredentialRow(msgspec.Struct, frozen=True):
    """A key that opens the door until `expires_at`: what the keyring needs, and nothing else."""

    hash: bytes
    key_id: str
    tenant_id: str
    tenant_name: str
    max_streams: int | None
    expires_at: int | None


class Snapshot(msgspec.Struct, frozen=True):
    """One consistent read: every key that is not revoked, of every tenant that is not disabled, at `revision`."""

    store_id: str
    revision: int
    credentials: tuple[CredentialRow, ...]


class UsageRow(Totals, frozen=True):
    """What one request used, and whose it was. `sequence` is its place in the stream."""

    id: str
    sequence: int
    closed_at: int
    request_id: str
    tenant_id: str
    key_id: str
    model: str
    version: str


class Progress(msgspec.Struct, frozen=True):
    """How far the usage stream has been applied: last sequence, its time in ns, and where a new reader must begin."""

    applied: int = 0
    applied_at: int = 0
    floor: int = 1
