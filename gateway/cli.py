"""The command `evenflow`: thin. A command imports what it runs only once it runs, so that `--help` answers at once."""

import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.cli_nats import nats
from shared.errors import EvenflowError, SettingsError

if TYPE_CHECKING:
    from gateway.doctor import Check
    from gateway.store.rows import KeyRow, TenantRow, UsageRow
    from gateway.store.store import Store
    from shared.settings_load import Loaded

T = TypeVar("T")
EXIT_FAILED = 1
EXIT_SETTINGS = 2
UNITS_S = {"m": 60, "h": 3600, "d": 86_400}


class _Lines(click.Group):
    """Turns every error that Evenflow raises on purpose into lines for a terminal, and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
        except* EvenflowError as group:
            errors = list(_each(group))
            for error in errors:
                for line in str(error).splitlines():
                    click.echo(f"evenflow: {line}", err=True)
            sys.exit(EXIT_SETTINGS if any(isinstance(error, SettingsError) for error in errors) else EXIT_FAILED)
        return result


def _each(group: BaseExceptionGroup[EvenflowError]) -> Sequence[EvenflowError]:
    flat: list[EvenflowError] = []
    for error in group.exceptions:
        flat += _each(error) if isinstance(error, BaseExceptionGroup) else [error]
    return flat


def _seconds(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """`90d`, `12h` or `30m`, as seconds."""
    if value is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,5})([mhd])", value, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 90d, 12h or 30m")
    return int(match[1]) * UNITS_S[match[2]]


config_option = click.option(
    "--config", metavar="FILE", help="Settings file [default: $EVENFLOW_CONFIG, else evenflow.toml here if it exists]."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _load(config: str | None, overrides: dict[str, object] | None = None) -> "Loaded":
    from shared.settings_load import load  # noqa: PLC0415

    return load(config, os.environ, overrides or {})


@click.group(cls=_Lines, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="evenflow", message="evenflow %(version)s")
def main() -> None:
    """Evenflow: one OpenAI-compatible LLM service for many tenants, over a handful of unlike machines."""


main.add_command(nats)


@main.command()
@config_option
def gateway(config: str | None) -> None:
    """Run one gateway until SIGTERM."""
    settings = _load(config).settings
    from gateway.serve import run  # noqa: PLC0415

    run(settings)


@main.command()
@config_option
@click.option("--engine", type=click.Choice(["llamacpp", "exllamav2", "null"]), help="Engine of every worker.")
@click.option("--null-mode", type=click.Choice(["script", "hash", "pace"]), help="What the null engine answers.")
@click.option("--null-rate", type=float, metavar="N", help="Null engine, mode pace: tokens per second and stream.")
@click.option("--null-tokens", type=int, metavar="N", help="Null engine: tokens per answer.")
@click.option("--workers", type=int, metavar="N", help="So many workers, like the first.")
@click.option("--port", type=int, metavar="PORT", help="Port of the API.")
@click.option("--admin-port", type=int, metavar="PORT", help="Port of metrics and health.")
@click.option("--no-answer", is_flag=True, help="Do not stream a first answer to the terminal.")
def up(config: str | None, no_answer: bool, **flags: Any) -> None:
    """Run NATS, workers and a gateway on this machine until Ctrl-C."""
    settings = _load(config, up_overrides(**flags)).settings
    from gateway.up.command import UpOptions, run  # noqa: PLC0415

    sys.exit(run(settings, UpOptions(answer=not no_answer)))


def up_overrides(
    *,
    engine: str | None = None,
    null_mode: str | None = None,
    null_rate: float | None = None,
    null_tokens: int | None = None,
    workers: int | None = None,
    port: int | None = None,
    admin_port: int | None = None,
) -> dict[str, object]:
    """What the flags of `up` say, as settings; a flag that was not given says nothing."""
    given = {
        "workers": workers,
        "workers.*.engine": engine,
        "workers.*.model": "null" if engine == "null" else None,
        "workers.*.null_mode": null_mode,
        "workers.*.null_rate": null_rate,
        "workers.*.null_tokens": null_tokens,
        "gateway.port": port,
        "admin.port": admin_port,
    }
    return {path: value for path, value in given.items() if value is not None}


@main.command()
@config_option
@json_option
def doctor(config: str | None, as_json: bool) -> None:
    """Show the settings in force, where each came from, and what stands in the way (exit status 1)."""
    loaded = _load(config)
    from gateway.doctor import examine, in_force  # noqa: PLC0415

    settings, checks = in_force(loaded.settings, loaded.origins), examine(loaded.settings)
    if as_json:
        _print_json({"settings": settings, "checks": checks})
    else:
        _print_table(("setting", "value", "from"), [(row.path, row.value, row.origin) for row in settings])
        click.echo()
        _print_table(("check", "", ""), [(check.name, _verdict(check), check.message) for check in checks])
    if any(check.essential and not check.ok for check in checks):
        sys.exit(EXIT_FAILED)


def _verdict(check: "Check") -> str:
    if check.ok:
        return "ok"
    return check.fault.upper() if check.essential else "warning"


@main.group()
def tenant() -> None:
    """Tenants: who may use the service."""


@tenant.command("create")
@config_option
@json_option
@click.argument("name")
@click.option("--max-streams", type=int, metavar="N", help="Bound on open requests [default: limits.tenant_streams].")
def tenant_create(config: str | None, as_json: bool, name: str, max_streams: int | None) -> None:
    """Add a tenant."""
    row = _with_store(config, lambda store: store.create_tenant(name, max_streams=max_streams))
    _print_tenants([row], as_json)


@tenant.command("list")
@config_option
@json_option
def tenant_list(config: str | None, as_json: bool) -> None:
    """List all tenants."""
    _print_tenants(_with_store(config, lambda store: store.tenants()), as_json)


@tenant.command("disable")
@config_option
@json_option
@click.argument("name")
def tenant_disable(config: str | None, as_json: bool, name: str) -> None:
    """Shut all keys of a tenant out, within a second."""
    row = _with_store(config, lambda store: store.set_tenant_disabled(name, disabled=True))
    _print_tenants([row], as_json)


@tenant.command("enable")
@config_option
@json_option
@click.argument("name")
def tenant_enable(config: str | None, as_json: bool, name: str) -> None:
    """Let a disabled tenant's keys in again."""
    row = _with_store(config, lambda store: store.set_tenant_disabled(name, disabled=False))
    _print_tenants([row], as_json)


@main.group()
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
    row, secret = _with_store(config, lambda store: store.create_key(tenant_name, name, expires_at=expires_at))
    if as_json:
        import msgspec  # noqa: PLC0415

        _print_json({**msgspec.structs.asdict(row), "key": secret})
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
    _print_keys(_with_store(config, lambda store: store.keys(tenant_name)), as_json)


@key.command("revoke")
@config_option
@json_option
@click.argument("key_name", metavar="KEY")
@click.option(
    "--tenant", "tenant_name", metavar="NAME", help="Whose key; needed if several tenants have one of that name."
)
def key_revoke(config: str | None, as_json: bool, key_name: str, tenant_name: str | None) -> None:
    """Revoke a key: no gateway takes it after a second."""
    _print_keys([_with_store(config, lambda store: store.revoke_key(key_name, tenant=tenant_name))], as_json)


@main.group()
def usage() -> None:
    """Usage: what each request used, one row a request."""


@usage.command("list")
@config_option
@json_option
@click.option("--tenant", metavar="NAME", help="Only this tenant's.")
@click.option("--most", type=click.IntRange(1), default=50, show_default=True, help="So many, newest first.")
def usage_list(config: str | None, as_json: bool, tenant: str | None, most: int) -> None:
    """List the last requests with their tokens."""

    async def read(store: "Store") -> "Sequence[UsageRow]":
        from gateway.store.usage import UsageTable  # noqa: PLC0415

        tenant_id = None if tenant is None else (await store.tenant(tenant)).id
        return await UsageTable(store).rows(tenant_id=tenant_id, most=most)

    rows = _with_store(config, read)
    if as_json:
        _print_json(rows)
        return
    _print_table(
        ("closed", "request", "tenant", "model", "outcome", "prompt", "charged", "generated"),
        [
            (
                *(_time(row.closed_at), row.request_id, row.tenant_id, row.model, row.outcome),
                *(str(row.prompt), str(row.charged), str(row.generated)),
            )
            for row in rows
        ],
    )


def _with_store(config: str | None, work: "Callable[[Store], Awaitable[T]]") -> T:
    settings = _load(config).settings
    import asyncio  # noqa: PLC0415

    from gateway.store.store import Store  # noqa: PLC0415

    async def run() -> T:
        store = await Store.open(settings)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _print_tenants(rows: "Sequence[TenantRow]", as_json: bool) -> None:
    if as_json:
        _print_json(rows)
        return
    lines = [
        (row.name, row.id, _time(row.created_at), str(row.max_streams or "default"), _time(row.disabled_at))
        for row in rows
    ]
    _print_table(("tenant", "id", "created", "max streams", "disabled"), lines)


def _print_keys(rows: "Sequence[KeyRow]", as_json: bool) -> None:
    if as_json:
        _print_json(rows)
        return
    lines = [
        (row.tenant_name, row.name, f"{row.display}...", row.id, _time(row.created_at), _state(row)) for row in rows
    ]
    _print_table(("tenant", "key", "begins", "id", "created", "state"), lines)


def _state(row: "KeyRow") -> str:
    if row.revoked_at is not None:
        return f"revoked {_time(row.revoked_at)}"
    if row.expires_at is None:
        return "valid"
    return ("expired " if row.expires_at <= time.time() * 1000 else "valid until ") + _time(row.expires_at)


def _time(ms: int | None) -> str:
    return "-" if ms is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(ms / 1000))


def _print_json(value: Any) -> None:
    import msgspec  # noqa: PLC0415

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]
    for line in (head, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
