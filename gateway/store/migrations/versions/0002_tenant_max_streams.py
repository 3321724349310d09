"""A tenant's own bound on open requests."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Tenants that were there go on under the bound of the settings."""
    op.add_column("tenants", sa.Column("max_streams", sa.Integer()))


def downgrade() -> None:
    """Forget the bounds; tenants and keys stay."""
    op.drop_column("tenants", "max_streams")
