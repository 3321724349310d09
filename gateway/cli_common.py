"""What the commands share: options, settings, and how things are printed."""

import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from gateway.store.rows import Actor
    from gateway.store.store import Store
    from shared.settings_load import Loaded

T = TypeVar("T")
UNITS_S: Final = {"m": 60, "h": 3600, "d": 86_400}

config_option = click.option(
    "--config", metavar="FILE", help="Settings file [default: $EVENFLOW_CONFIG, else evenflow.toml here if it exists]."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def load_settings(config: str | None, overrides: Mapping[str, object] | None = None) -> "Loaded":
    """Load the settings of this process; `overrides` is what the command line says, by dotted path.

    Raises:
        SettingsError: with a line for every wrong key.
    """
    from shared.settings_load import load  # noqa: PLC0415

    return load(config, os.environ, overrides or {})


def local_actor() -> "Actor":
    """Who runs this command, for the audit log."""
    import getpass  # noqa: PLC0415

    from gateway.store.rows import Actor  # noqa: PLC0415

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        name = str(os.getuid())
    return Actor("local", name=name)


def with_store(config: str | None, work: "Callable[[Store], Awaitable[T]]") -> T:
    """Open the store of this process's settings, do `work` with it, and close it. Raises what either raises."""
    settings = load_settings(config).settings
    import asyncio  # noqa: PLC0415

    from gateway.store.store import Store  # noqa: PLC0415

    async def run() -> T:
        store = await Store.open(settings)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def seconds(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Option callback: `90d`, `12h` or `30m`, as seconds."""
    if value is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,5})([mhd])", value, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 90d, 12h or 30m")
    return int(match[1]) * UNITS_S[match[2]]


def shown_time(ms: int | None) -> str:
    """A moment in ms since 1970 for people; a dash for none."""
    return "-" if ms is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(ms / 1000))


def print_json(value: Any) -> None:
    """Print a value, rows and structs among them, as indented JSON."""
    import msgspec  # noqa: PLC0415

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their headings, each column as wide as its widest cell."""
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]
    for line in (head, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
