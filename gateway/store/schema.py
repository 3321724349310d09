"""The tables. Times are integers: milliseconds since 1970, UTC. Ids are UUIDs as text, so that both databases agree."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

tenants = Table(
    "tenants",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("name", String(63), nullable=False, unique=True),
    Column("created_at", BigInteger, nullable=False),
    Column("disabled_at", BigInteger),
    Column("max_streams", Integer),
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("tenant_id", String(36), ForeignKey("tenants.id"), nullable=False, index=True),
    Column("name", String(63), nullable=False),
    Column("hash", LargeBinary(32), nullable=False, unique=True),
    Column("display", String(16), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
)

# A name means one key at a time; a revoked key gives its name back.
Index(
    "uq_keys_live_name",
    keys.c.tenant_id,
    keys.c.name,
    unique=True,
    sqlite_where=text("revoked_at IS NULL"),
    postgresql_where=text("revoked_at IS NULL"),
)

revision = Table(
    "revision",
    metadata,
    Column("one", Integer, CheckConstraint("one = 1", name="single"), primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)
"""One row. Every change of tenants or keys adds 1 to `number` in its own transaction: readers poll only this."""

identity = Table(
    "identity",
    metadata,
    Column("one", Integer, CheckConstraint("one = 1", name="single"), primary_key=True, autoincrement=False),
    Column("store_id", String(36), nullable=False),
    Column("pepper_check", LargeBinary(32)),
)
"""One row. `store_id` is made once with the tables; `pepper_check` tells a wrong pepper before it refuses every key."""

usage = Table(
    "usage",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("closed_at", BigInteger, nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("tenant_id", String(36), nullable=False),
    Column("key_id", String(36), nullable=False),
    Column("model", String(255), nullable=False),
    Column("version", String(255), nullable=False),
    Column("outcome", String(64), nullable=False),
    Column("prompt", BigInteger, nullable=False),
    Column("cached", BigInteger, nullable=False),
    Column("charged", BigInteger, nullable=False),
    Column("generated", BigInteger, nullable=False),
    Column("accepted", BigInteger, nullable=False),
    Column("proposed", BigInteger, nullable=False),
    Column("device_seconds", Float(53), nullable=False),
    Column("queue_ms", Float(53), nullable=False),
    Column("prefill_ms", Float(53), nullable=False),
    Column("decode_ms", Float(53), nullable=False),
)
"""One row a request. No foreign keys: what was used stays on record, whatever becomes of the tenant or its keys."""

Index("ix_usage_tenant_id_closed_at", usage.c.tenant_id, usage.c.closed_at)

usage_progress = Table(
    "usage_progress",
    metadata,
    Column("one", Integer, CheckConstraint("one = 1", name="single"), primary_key=True, autoincrement=False),
    Column("applied", BigInteger, nullable=False),
    Column("applied_at", BigInteger, nullable=False),
    Column("floor", BigInteger, nullable=False),
)
"""One row: the last record of the usage stream that is in `usage`, its time (ns since 1970: tells one stream from
another), and the first that a new reader must read, to know of the requests that are still open."""

leases = Table(
    "leases",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("holder", String(63), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
"""What only one gateway at a time should do, and which one does it."""
