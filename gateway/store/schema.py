"""The tables. Times are integers: milliseconds since 1970, UTC. Ids are UUIDs as text, so that both databases agree."""

from sqlalchemy import (
    BigInteger,
    Boolean,
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
    Text,
    false,
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
    Column("zone", String(64), nullable=False, server_default="UTC"),
    Column("version", Integer, nullable=False, server_default="1"),
)
"""`zone` is the IANA name of the calendar that budgets go by. `version` counts a row's changes: an ETag."""

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
    Column("scopes", Text, nullable=False, server_default='["inference","usage"]'),
    Column("models", Text),
    Column("networks", Text),
    Column("last_used_at", BigInteger),
    Column("replaced_by", String(36)),
    Column("version", Integer, nullable=False, server_default="1"),
)
"""`scopes`, `models` and `networks` are JSON lists of text; NULL allows every model and every network. A key that was
rotated is `replaced_by` another of its name, and expires when the overlap ends."""

# A name means one key at a time; a revoked or replaced key gives its name back.
Index(
    "uq_keys_live_name",
    keys.c.tenant_id,
    keys.c.name,
    unique=True,
    sqlite_where=text("revoked_at IS NULL AND replaced_by IS NULL"),
    postgresql_where=text("revoked_at IS NULL AND replaced_by IS NULL"),
)

quotas = Table(
    "quotas",
    metadata,
    Column("tenant_id", String(36), ForeignKey("tenants.id"), primary_key=True),
    Column("key_id", String(36), primary_key=True, server_default=""),
    Column("model", String(255), primary_key=True, server_default=""),
    *(
        Column(name, BigInteger, nullable=False, server_default="0")
        for name in ("requests", "tokens", "streams", "long_prompts", "daily", "monthly")
    ),
    Column("strict", Boolean(name="strict"), nullable=False, server_default=false()),
    Column("updated_at", BigInteger, nullable=False),
    Column("version", Integer, nullable=False, server_default="1"),
)
"""Limits of a tenant (`key_id` and `model` empty), of one of its keys, of a model for it, or of a model for one key.
0 sets none. `requests` and `tokens` are per minute; `daily` and `monthly` are tokens in the tenant's own calendar."""

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
    Column("day", Integer, nullable=False, server_default="0"),
)
"""One row a request; `day` is the ordinal of the tenant's own date when it was let in. No foreign keys: what was used
stays on record, whatever becomes of the tenant or its keys."""

Index("ix_usage_tenant_id_closed_at", usage.c.tenant_id, usage.c.closed_at)
Index("ix_usage_closed_at", usage.c.closed_at)

usage_days = Table(
    "usage_days",
    metadata,
    Column("tenant_id", String(36), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("key_id", String(36), primary_key=True),
    Column("model", String(255), primary_key=True),
    Column("version", String(255), primary_key=True),
    *(
        Column(name, BigInteger, nullable=False)
        for name in ("requests", "failed", "prompt", "cached", "charged", "generated", "accepted", "proposed")
    ),
    Column("device_seconds", Float(53), nullable=False),
)
"""`usage` added up, in the same transaction: it stays when the rows of single requests are too old to keep."""

Index("ix_usage_days_day", usage_days.c.day)

usage_progress = Table(
    "usage_progress",
    metadata,
    Column("one", Integer, CheckConstraint("one = 1", name="single"), primary_key=True, autoincrement=False),
    Column("applied", BigInteger, nullable=False),
    Column("applied_at", BigInteger, nullable=False),
    Column("floor", BigInteger, nullable=False),
    Column("pruned_at", BigInteger, nullable=False, server_default="0"),
)
"""One row: the last record of the usage stream that is in `usage`, its time (ns since 1970: tells one stream from
another), and the first that a new reader must read, to know of the requests that are still open. Of what closed before
`pruned_at` (ms), rows may have been deleted: if it is read again, it must not count again."""

leases = Table(
    "leases",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("holder", String(63), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
"""What only one gateway at a time should do, and which one does it."""

admins = Table(
    "admins",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("name", String(63), nullable=False, unique=True),
    Column("password", String(255), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("disabled_at", BigInteger),
    Column("version", Integer, nullable=False, server_default="1"),
)
"""People who may use the admin plane. `password` is an Argon2id hash in its standard text form."""

admin_sessions = Table(
    "admin_sessions",
    metadata,
    Column("hash", LargeBinary(32), primary_key=True),
    Column("admin_id", String(36), ForeignKey("admins.id"), nullable=False, index=True),
    Column("csrf", String(64), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("source", String(64), nullable=False),
)
"""Who is logged in. `hash` is of the cookie, which is not kept."""

admin_tokens = Table(
    "admin_tokens",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("hash", LargeBinary(32), nullable=False, unique=True),
    Column("display", String(16), nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("last_used_at", BigInteger),
    Column("version", Integer, nullable=False, server_default="1"),
)
"""Programs that may use the admin plane; `scopes` is a JSON list of text."""

Index(
    "uq_admin_tokens_live_name",
    admin_tokens.c.name,
    unique=True,
    sqlite_where=text("revoked_at IS NULL"),
    postgresql_where=text("revoked_at IS NULL"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("actor", String(160), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("request", LargeBinary(32), nullable=False),
    Column("status", Integer, nullable=False),
    Column("headers", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
"""What a creation that named itself was answered, so that its repetition is answered alike. `request` is a hash of
what was asked, `body` is sealed: it may hold a key."""

audit = Table(
    "audit",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("actor_kind", String(16), nullable=False),
    Column("actor_id", String(36), nullable=False),
    Column("actor_name", String(160), nullable=False),
    Column("source", String(64), nullable=False),
    Column("action", String(64), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("object_id", String(255), nullable=False),
    Column("object_name", String(255), nullable=False),
    Column("before", Text),
    Column("after", Text),
    Column("previous", LargeBinary(32), nullable=False),
    Column("hash", LargeBinary(32), nullable=False),
)
"""Who changed what: rows are only ever added (triggers see to it), and each holds the hash of the one before it."""

Index("ix_audit_kind_object_id", audit.c.kind, audit.c.object_id)
Index("ix_audit_at", audit.c.at)
