"""The command `evenflow`: thin. A command imports what it runs only once it runs, so that `--help` answers at once."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gateway.cli_admin import admin
from gateway.cli_audit import audit
from gateway.cli_certs import certs
from gateway.cli_common import config_option, json_option, load_settings, print_json, print_table
from gateway.cli_keys import key
from gateway.cli_nats import nats
from gateway.cli_quota import quota
from gateway.cli_store import tenant
from gateway.cli_usage import usage
from shared.errors import EvenflowError, SettingsError

if TYPE_CHECKING:
    from gateway.doctor import Check

EXIT_FAILED = 1
EXIT_SETTINGS = 2


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


@click.group(cls=_Lines, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="evenflow", message="evenflow %(version)s")
def main() -> None:
    """Evenflow: one OpenAI-compatible LLM service for many tenants, over a handful of unlike machines."""


for _group in (admin, audit, certs, key, nats, quota, tenant, usage):
    main.add_command(_group)


@main.command()
@config_option
def gateway(config: str | None) -> None:
    """Run one gateway until SIGTERM."""
    settings = load_settings(config).settings
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
@click.option("--admin-port", type=int, metavar="PORT", help="Port of the admin API, metrics and health.")
@click.option("--tls", is_flag=True, help="Serve the API over TLS, with a development certificate unless one is set.")
@click.option("--no-answer", is_flag=True, help="Do not stream a first answer to the terminal.")
def up(config: str | None, tls: bool, no_answer: bool, **flags: Any) -> None:
    """Run NATS, workers and a gateway on this machine until Ctrl-C."""
    settings = load_settings(config, up_overrides(**flags)).settings
    from gateway.up.command import UpOptions, run  # noqa: PLC0415

    sys.exit(run(settings, UpOptions(answer=not no_answer, tls=tls)))


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
    loaded = load_settings(config)
    from gateway.doctor import examine, in_force  # noqa: PLC0415

    settings, checks = in_force(loaded.settings, loaded.origins), examine(loaded.settings)
    if as_json:
        print_json({"settings": settings, "checks": checks})
    else:
        print_table(("setting", "value", "from"), [(row.path, row.value, row.origin) for row in settings])
        click.echo()
        print_table(("check", "", ""), [(check.name, _verdict(check), check.message) for check in checks])
    if any(check.essential and not check.ok for check in checks):
        sys.exit(EXIT_FAILED)


def _verdict(check: "Check") -> str:
    if check.ok:
        return "ok"
    return check.fault.upper() if check.essential else "warning"


if __name__ == "__main__":
    main()
