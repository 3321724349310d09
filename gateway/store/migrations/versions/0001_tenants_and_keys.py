"""Tenants, keys, the revision that every change bumps, and the store's own identity."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables, and their single rows."""
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("disabled_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sa.UniqueConstraint("name", name="uq_tenants_name"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.Column("display", sa.String(16), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_keys_tenant_id_tenants"),
        sa.UniqueConstraint("hash", name="uq_keys_hash"),
    )
    op.create_index("ix_keys_tenant_id", "keys", ["tenant_id"])
    live = sa.text("revoked_at IS NULL")
    op.create_index(
        "uq_keys_live_name", "keys", ["tenant_id", "name"], unique=True, sqlite_where=live, postgresql_where=live
    )
    revision_table = op.create_table(
        "revision",
        sa.Column("one", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("one", name="pk_revision"),
        sa.CheckConstraint("one = 1", name="single"),
    )
    identity_table = op.create_table(
        "identity",
        sa.Column("one", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("store_id", sa.String(36), nullable=False),
        sa.Column("pepper_check", sa.LargeBinary(32)),
        sa.PrimaryKeyConstraint("one", name="pk_identity"),
        sa.CheckConstraint("one = 1", name="single"),
    )
    op.bulk_insert(revision_table, [{"one": 1, "number": 0}])
    op.bulk_insert(identity_table, [{"one": 1, "store_id": str(uuid.uuid4())}])


def downgrade() -> None:
    """Drop everything."""
    for table in ("identity", "revision", "keys", "tenants"):
        op.drop_table(table)
