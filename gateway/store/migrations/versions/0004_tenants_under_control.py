"""Quotas, the rules of keys, administrators, their audit log, and usage added up by day."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TOKENS = ("prompt", "cached", "charged", "generated", "accepted", "proposed")
_LIMITS = ("requests", "tokens", "streams", "long_prompts", "daily", "monthly")
_MOST = 2**31 - 1
"""Of an INTEGER."""


def upgrade() -> None:
    """Bounds on streams become quotas; keys may do what they could; usage that is there is added up by UTC day."""
    _quotas()
    op.add_column("tenants", sa.Column("zone", sa.String(64), nullable=False, server_default="UTC"))
    op.add_column("tenants", sa.Column("version", sa.Integer(), nullable=False, server_default="1"))
    op.drop_column("tenants", "max_streams")
    op.add_column("keys", sa.Column("scopes", sa.Text(), nullable=False, server_default='["inference","usage"]'))
    for name in ("models", "networks"):
        op.add_column("keys", sa.Column(name, sa.Text()))
    op.add_column("keys", sa.Column("last_used_at", sa.BigInteger()))
    op.add_column("keys", sa.Column("replaced_by", sa.String(36)))
    op.add_column("keys", sa.Column("version", sa.Integer(), nullable=False, server_default="1"))
    _live_names("revoked_at IS NULL AND replaced_by IS NULL")
    _usage_days()
    _admins()
    _audit()


def downgrade() -> None:
    """Forget them; bounds on streams go back to their tenants, and replaced keys are revoked."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_only_grows() CASCADE")
    for table in ("audit", "idempotency", "admin_tokens", "admin_sessions", "admins", "usage_days"):
        op.drop_table(table)
    op.drop_column("usage_progress", "pruned_at")
    op.drop_index("ix_usage_closed_at", "usage")
    op.drop_column("usage", "day")
    op.execute("UPDATE keys SET revoked_at = created_at WHERE replaced_by IS NOT NULL AND revoked_at IS NULL")
    _live_names("revoked_at IS NULL")
    for name in ("version", "replaced_by", "last_used_at", "networks", "models", "scopes"):
        op.drop_column("keys", name)
    op.add_column("tenants", sa.Column("max_streams", sa.Integer()))
    op.execute(f"UPDATE quotas SET streams = {_MOST} WHERE streams > {_MOST}")  # noqa: S608 - a constant
    op.execute(
        "UPDATE tenants SET max_streams = (SELECT NULLIF(streams, 0) FROM quotas "
        "WHERE quotas.tenant_id = tenants.id AND key_id = '' AND model = '')"
    )
    op.drop_table("quotas")
    for name in ("version", "zone"):
        op.drop_column("tenants", name)


def _quotas() -> None:
    op.create_table(
        "quotas",
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("key_id", sa.String(36), nullable=False, server_default=""),
        sa.Column("model", sa.String(255), nullable=False, server_default=""),
        *(sa.Column(name, sa.BigInteger(), nullable=False, server_default="0") for name in _LIMITS),
        sa.Column("strict", sa.Boolean(name="strict"), nullable=False, server_default=sa.false()),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
        sa.PrimaryKeyConstraint("tenant_id", "key_id", "model", name="pk_quotas"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_quotas_tenant_id_tenants"),
    )
    op.execute(
        "INSERT INTO quotas (tenant_id, streams, updated_at) "
        "SELECT id, max_streams, created_at FROM tenants WHERE max_streams IS NOT NULL"
    )


def _live_names(which: str) -> None:
    """Which keys hold their name."""
    op.drop_index("uq_keys_live_name", "keys")
    live = sa.text(which)
    op.create_index(
        "uq_keys_live_name", "keys", ["tenant_id", "name"], unique=True, sqlite_where=live, postgresql_where=live
    )


def _usage_days() -> None:
    op.add_column("usage", sa.Column("day", sa.Integer(), nullable=False, server_default="0"))
    op.create_index("ix_usage_closed_at", "usage", ["closed_at"])
    op.add_column("usage_progress", sa.Column("pruned_at", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "usage_days",
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key_id", sa.String(36), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("version", sa.String(255), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("requests", "failed", *_TOKENS)),
        sa.Column("device_seconds", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "day", "key_id", "model", "version", name="pk_usage_days"),
    )
    op.create_index("ix_usage_days_day", "usage_days", ["day"])
    # 719,163 is the ordinal of 1 January 1970.
    op.execute("UPDATE usage SET day = 719163 + closed_at / 86400000")
    sums = ", ".join(f"sum({name})" for name in _TOKENS)
    op.execute(
        f"INSERT INTO usage_days (tenant_id, day, key_id, model, version, requests, failed, {', '.join(_TOKENS)}, "  # noqa: S608
        "device_seconds) SELECT tenant_id, day, key_id, model, version, count(*), "
        f"sum(CASE WHEN outcome IN ('stop', 'length') THEN 0 ELSE 1 END), {sums}, sum(device_seconds) "
        "FROM usage GROUP BY tenant_id, day, key_id, model, version"
    )


def _admins() -> None:
    op.create_table(
        "admins",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("password", sa.String(255), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("disabled_at", sa.BigInteger()),
        sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
        sa.PrimaryKeyConstraint("id", name="pk_admins"),
        sa.UniqueConstraint("name", name="uq_admins_name"),
    )
    op.create_table(
        "admin_sessions",
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.Column("admin_id", sa.String(36), nullable=False),
        sa.Column("csrf", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_admin_sessions"),
        sa.ForeignKeyConstraint(["admin_id"], ["admins.id"], name="fk_admin_sessions_admin_id_admins"),
    )
    op.create_index("ix_admin_sessions_admin_id", "admin_sessions", ["admin_id"])
    op.create_table(
        "admin_tokens",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.Column("display", sa.String(16), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.Column("last_used_at", sa.BigInteger()),
        sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
        sa.PrimaryKeyConstraint("id", name="pk_admin_tokens"),
        sa.UniqueConstraint("hash", name="uq_admin_tokens_hash"),
    )
    live = sa.text("revoked_at IS NULL")
    op.create_index(
        "uq_admin_tokens_live_name", "admin_tokens", ["name"], unique=True, sqlite_where=live, postgresql_where=live
    )
    op.create_table(
        "idempotency",
        sa.Column("actor", sa.String(160), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("request", sa.LargeBinary(32), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("actor", "key", name="pk_idempotency"),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor_kind", sa.String(16), nullable=False),
        sa.Column("actor_id", sa.String(36), nullable=False),
        sa.Column("actor_name", sa.String(160), nullable=False),
        sa.Column("source", sa.String(64), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("object_id", sa.String(255), nullable=False),
        sa.Column("object_name", sa.String(255), nullable=False),
        sa.Column("before", sa.Text()),
        sa.Column("after", sa.Text()),
        sa.Column("previous", sa.LargeBinary(32), nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_audit"),
    )
    op.create_index("ix_audit_kind_object_id", "audit", ["kind", "object_id"])
    op.create_index("ix_audit_at", "audit", ["at"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION audit_only_grows() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the audit log only grows'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
            "FOR EACH STATEMENT EXECUTE FUNCTION audit_only_grows()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_no_{verb.lower()} BEFORE {verb} ON audit "
            "BEGIN SELECT RAISE(ABORT, 'the audit log only grows'); END"
        )
