"""What the commands share: options, settings, and how things are printed."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gateway.store.rows import Actor
    from shared.settings_load import Loaded

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


def print_json(value: Any) -> None:
    """Print a value, rows and structs among them, as indented JSON."""
    import msgspec  # noqa: PLC0415

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their headings, each column as wide as its widest cell."""
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]
    for line in (head, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
