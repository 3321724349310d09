"""`evenflow admin`: people and programs that may use the admin plane."""

import sys
import time
from typing import TYPE_CHECKING

import click

from gateway.cli_common import (
    config_option,
    json_option,
    local_actor,
    print_json,
    print_table,
    seconds,
    shown_time,
    with_store,
)
from gateway.core.admin_tokens import SCOPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.store.admins import AdminRow
    from gateway.store.tokens import TokenRow


@click.group()
def admin() -> None:
    """Admins and admin tokens: who may use the admin plane."""


@admin.command("create")
@config_option
@json_option
@click.argument("name")
def admin_create(config: str | None, as_json: bool, name: str) -> None:
    """Add an admin. The password is asked for, or read as the first line of standard input."""
    password = _password()
    row = with_store(config, lambda store: store.admins.create(name, password, by=local_actor()))
    _print_admins([row], as_json)


@admin.command("password")
@config_option
@json_option
@click.argument("name")
def admin_password(config: str | None, as_json: bool, name: str) -> None:
    """Give an admin another password, asked for like the first; every session of theirs ends."""
    password = _password()
    row = with_store(config, lambda store: store.admins.set_password(name, password, by=local_actor()))
    _print_admins([row], as_json)


@admin.command("list")
@config_option
@json_option
def admin_list(config: str | None, as_json: bool) -> None:
    """List all admins."""
    _print_admins(with_store(config, lambda store: store.admins.all()), as_json)


@admin.command("disable")
@config_option
@json_option
@click.argument("name")
def admin_disable(config: str | None, as_json: bool, name: str) -> None:
    """Shut an admin out, at once."""
    row = with_store(config, lambda store: store.admins.set_disabled(name, disabled=True, by=local_actor()))
    _print_admins([row], as_json)


@admin.command("enable")
@config_option
@json_option
@click.argument("name")
def admin_enable(config: str | None, as_json: bool, name: str) -> None:
    """Let a disabled admin in again."""
    row = with_store(config, lambda store: store.admins.set_disabled(name, disabled=False, by=local_actor()))
    _print_admins([row], as_json)


@admin.group()
def token() -> None:
    """Tokens: how programs use the admin plane."""


@token.command("create")
@config_option
@json_option
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES), help="May be repeated.")
@click.option("--expires-in", callback=seconds, metavar="90d|12h|30m", help="Valid for so long [default: for ever].")
def token_create(config: str | None, as_json: bool, name: str, scopes: tuple[str, ...], expires_in: int | None) -> None:
    """Make a token and print it, this once. Standard output gets the token and nothing else."""
    expires_at = None if expires_in is None else int((time.time() + expires_in) * 1000)
    row, secret = with_store(
        config, lambda store: store.tokens.create(name, scopes, expires_at=expires_at, by=local_actor())
    )
    if as_json:
        import msgspec  # noqa: PLC0415

        print_json({**msgspec.structs.asdict(row), "token": secret})
    else:
        click.echo(f"Token {row.name} ({', '.join(row.scopes)}). It is shown only now:", err=True)
        click.echo(secret)


@token.command("list")
@config_option
@json_option
def token_list(config: str | None, as_json: bool) -> None:
    """List all tokens. The tokens themselves are not kept."""
    _print_tokens(with_store(config, lambda store: store.tokens.all()), as_json)


@token.command("revoke")
@config_option
@json_option
@click.argument("name", metavar="TOKEN")
def token_revoke(config: str | None, as_json: bool, name: str) -> None:
    """Revoke a token: the next request with it is refused."""
    _print_tokens([with_store(config, lambda store: store.tokens.revoke(name, by=local_actor()))], as_json)


def _password() -> str:
    """From the terminal, twice and unseen; else the first line of standard input. Never from the command line."""
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")


def _print_admins(rows: "Sequence[AdminRow]", as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    print_table(
        ("admin", "id", "created", "disabled"),
        [(row.name, row.id, shown_time(row.created_at), shown_time(row.disabled_at)) for row in rows],
    )


def _print_tokens(rows: "Sequence[TokenRow]", as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    lines = [
        (row.name, f"{row.display}...", row.id, ",".join(row.scopes), shown_time(row.last_used_at), _state(row))
        for row in rows
    ]
    print_table(("token", "begins", "id", "scopes", "last used", "state"), lines)


def _state(row: "TokenRow") -> str:
    if row.revoked_at is not None:
        return f"revoked {shown_time(row.revoked_at)}"
    if row.expires_at is None:
        return "valid"
    return ("expired " if row.expires_at <= time.time() * 1000 else "valid until ") + shown_time(row.expires_at)
