"""Usage, one row a request; how far the stream of usage records has been read; and who reads it."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables, and the row that says that nothing was read yet."""
    tokens = ("prompt", "cached", "charged", "generated", "accepted", "proposed")
    times = ("device_seconds", "queue_ms", "prefill_ms", "decode_ms")
    op.create_table(
        "usage",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("key_id", sa.String(36), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("version", sa.String(255), nullable=False),
        sa.Column("outcome", sa.String(64), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in tokens),
        *(sa.Column(name, sa.Float(53), nullable=False) for name in times),
        sa.PrimaryKeyConstraint("id", name="pk_usage"),
    )
    op.create_index("ix_usage_tenant_id_closed_at", "usage", ["tenant_id", "closed_at"])
    progress = op.create_table(
        "usage_progress",
        sa.Column("one", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("applied", sa.BigInteger(), nullable=False),
        sa.Column("applied_at", sa.BigInteger(), nullable=False),
        sa.Column("floor", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("one", name="pk_usage_progress"),
        sa.CheckConstraint("one = 1", name="single"),
    )
    op.bulk_insert(progress, [{"one": 1, "applied": 0, "applied_at": 0, "floor": 1}])
    op.create_table(
        "leases",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("holder", sa.String(63), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )


def downgrade() -> None:
    """Forget all usage; tenants and keys stay. The stream has it still, and is read again from its start."""
    for table in ("leases", "usage_progress", "usage"):
        op.drop_table(table)
