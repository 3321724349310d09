"""What the store gives out: frozen rows. Times are milliseconds since 1970, UTC."""

from typing import Literal

import msgspec

from gateway.core.accounts import Limits
from gateway.core.charging import Totals
from gateway.core.keys import SCOPES


class Actor(msgspec.Struct, frozen=True):
    """Who makes a change: an `admin` or `token` of the admin plane, somebody `local`, or the `system` itself.

    `source` is the address it came from; `local` for this machine.
    """

    kind: Literal["admin", "token", "local", "system"]
    id: str = ""
    name: str = ""
    source: str = "local"


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant. `zone` is the IANA name of the calendar that its budgets go by."""

    id: str
    name: str
    created_at: int
    disabled_at: int | None
    zone: str
    version: int


class QuotaRow(msgspec.Struct, frozen=True):
    """The limits of a tenant, of one of its keys (`key_id`), of a model for it, or of a model for one key."""

    tenant_id: str
    key_id: str
    model: str
    limits: Limits
    updated_at: int
    version: int


class KeyRow(msgspec.Struct, frozen=True):
    """A key as people may see it: never the key itself nor its hash. `display` is how it starts.

    `models` and `networks` are `None` where all are allowed. Once rotated it is `replaced_by` the id of another.
    """

    id: str
    tenant_id: str
    tenant_name: str
    name: str
    display: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    scopes: tuple[str, ...]
    models: tuple[str, ...] | None
    networks: tuple[str, ...] | None
    last_used_at: int | None
    replaced_by: str | None
    version: int


class CredentialRow(msgspec.Struct, frozen=True, gc=False):
    """A key that opens the door until `expires_at`: what the keyring needs, and nothing else."""

    hash: bytes
    key_id: str
    tenant_id: str
    tenant_name: str
    expires_at: int | None
    zone: str = "UTC"
    scopes: tuple[str, ...] = SCOPES
    models: tuple[str, ...] | None = None
    networks: tuple[str, ...] | None = None


class Moment(msgspec.Struct, frozen=True):
    """When the store was read: after so many changes, and the last entry of its audit log, by number and hash."""

    revision: int
    sequence: int = 0
    hash: bytes = b""


class Snapshot(msgspec.Struct, frozen=True):
    """One consistent read at `revision`: every key that is neither revoked nor expired, of each tenant not disabled.

    And the limits of those tenants. `moment` is where to go on from with `Store.changes`.
    """

    store_id: str
    revision: int
    credentials: tuple[CredentialRow, ...]
    quotas: tuple[QuotaRow, ...] = ()
    moment: Moment | None = None


class Changes(msgspec.Struct, frozen=True):
    """What became of keys since an earlier read. Of those with a hash in `touched`, only `credentials` open the door.

    `quotas` are all limits, or None if none changed.
    """

    moment: Moment
    touched: tuple[bytes, ...]
    credentials: tuple[CredentialRow, ...]
    quotas: tuple[QuotaRow, ...] | None


class UsageRow(Totals, frozen=True):
    """What one request used, and whose it was. `sequence` is its place in the stream, `day` as in `core.calendar`."""

    id: str
    sequence: int
    closed_at: int
    request_id: str
    tenant_id: str
    key_id: str
    model: str
    version: str
    day: int


class DaySum(msgspec.Struct, frozen=True):
    """Tokens, prompt and output, that requests of one kind used on one day of their tenant's calendar."""

    tenant_id: str
    key_id: str
    model: str
    day: int
    tokens: int


class Progress(msgspec.Struct, frozen=True):
    """How far the usage stream has been applied: last sequence, its time in ns, and where a new reader must begin."""

    applied: int = 0
    applied_at: int = 0
    floor: int = 1
