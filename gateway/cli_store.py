"""`evenflow tenant` and `key`: what the store holds."""

import time
from typing import TYPE_CHECKING

import click

from gateway.cli_common import config_option, json_option, local_actor, print_json, print_table
from gateway.cli_common import seconds as _seconds
from gateway.cli_common import shown_time as _time
from gateway.cli_common import with_store as _with_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.core.accounts import Limits
    from gateway.store.rows import KeyRow, TenantRow


@click.group()
def tenant() -> None:
    """Tenants: who may use the service."""


@tenant.command("create")
@config_option
@json_option
@click.argument("name")
@click.option("--max-streams", type=int, metavar="N", help="Bound on open requests [default: limits.tenant_streams].")
def tenant_create(config: str | None, as_json: bool, name: str, max_streams: int | None) -> None:
    """Add a tenant."""
    limits = None if max_streams is None else _streams(max_streams)
    row = _with_store(config, lambda store: store.tenants.create(name, limits=limits, by=local_actor()))
    _print_tenants([row], as_json)


@tenant.command("list")
@config_option
@json_option
def tenant_list(config: str | None, as_json: bool) -> None:
    """List all tenants."""
    _print_tenants(_with_store(config, lambda store: store.tenants.all()), as_json)


@tenant.command("disable")
@config_option
@json_option
@click.argument("name")
def tenant_disable(config: str | None, as_json: bool, name: str) -> None:
    """Shut all keys of a tenant out, within a second."""
    row = _with_store(config, lambda store: store.tenants.set_disabled(name, disabled=True, by=local_actor()))
    _print_tenants([row], as_json)


@tenant.command("enable")
@config_option
@json_option
@click.argument("name")
def tenant_enable(config: str | None, as_json: bool, name: str) -> None:
    """Let a disabled tenant's keys in again."""
    row = _with_store(config, lambda store: store.tenants.set_disabled(name, disabled=False, by=local_actor()))
    _print_tenants([row], as_json)


@click.group()
def key() -> None:
    """Keys: how a tenant's programs show who they are."""


@key.command("create")
@config_option
@json_option
@click.argument("tenant_name", metavar="TENANT")
@click.argument("name")
@click.option("--expires-in", callback=_seconds, metavar="90d|12h|30m", help="Valid for so long [default: for ever].")
def key_create(config: str | None, as_json: bool, tenant_name: str, name: str, expires_in: int | None) -> None:
    """Make a key and print it, this once. Standard output gets the key and nothing else."""
    expires_at = None if expires_in is None else int((time.time() + expires_in) * 1000)
    row, secret = _with_store(
        config, lambda store: store.keys.create(tenant_name, name, expires_at=expires_at, by=local_actor())
    )
    if as_json:
        import msgspec  # noqa: PLC0415

        print_json({**msgspec.structs.asdict(row), "key": secret})
    else:
        until = f", valid until {_time(row.expires_at)}" if row.expires_at else ""
        click.echo(
            f"Key {row.name} of tenant {row.tenant_name}{until}. It is taken within half a second and shown only now:",
            err=True,
        )
        click.echo(secret)


@key.command("list")
@config_option
@json_option
@click.argument("tenant_name", metavar="[TENANT]", required=False)
def key_list(config: str | None, as_json: bool, tenant_name: str | None) -> None:
    """List all keys, or one tenant's. The keys themselves are not kept."""
    _print_keys(_with_store(config, lambda store: store.keys.all(tenant_name)), as_json)


@key.command("revoke")
@config_option
@json_option
@click.argument("key_name", metavar="KEY")
@click.option(
    "--tenant", "tenant_name", metavar="NAME", help="Whose key; needed if several tenants have one of that name."
)
def key_revoke(config: str | None, as_json: bool, key_name: str, tenant_name: str | None) -> None:
    """Revoke a key: no gateway takes it after a second."""
    _print_keys(
        [_with_store(config, lambda store: store.keys.revoke(key_name, tenant=tenant_name, by=local_actor()))], as_json
    )


def _streams(most: int) -> "Limits":
    from gateway.core.accounts import Limits  # noqa: PLC0415

    return Limits(streams=most)


def _print_tenants(rows: "Sequence[TenantRow]", as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    lines = [(row.name, row.id, _time(row.created_at), row.zone, _time(row.disabled_at)) for row in rows]
    print_table(("tenant", "id", "created", "calendar", "disabled"), lines)


def _print_keys(rows: "Sequence[KeyRow]", as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    lines = [
        (row.tenant_name, row.name, f"{row.display}...", row.id, _time(row.created_at), _state(row)) for row in rows
    ]
    print_table(("tenant", "key", "begins", "id", "created", "state"), lines)


def _state(row: "KeyRow") -> str:
    if row.revoked_at is not None:
        return f"revoked {_time(row.revoked_at)}"
    if row.expires_at is None:
        return "valid"
    return ("expired " if row.expires_at <= time.time() * 1000 else "valid until ") + _time(row.expires_at)
