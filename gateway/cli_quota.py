"""`evenflow quota`: the limits of tenants, of their keys, of models for either."""

from typing import TYPE_CHECKING

import click

from gateway.cli_common import config_option, json_option, local_actor, print_json, print_table, shown_time, with_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.core.accounts import Limits
    from gateway.store.rows import QuotaRow
    from gateway.store.store import Store

BOUNDS = ("requests", "tokens", "streams", "long_prompts", "daily", "monthly")
_HELP = {
    "requests": "Requests a minute.",
    "tokens": "Tokens a minute.",
    "streams": "Choices in flight.",
    "long_prompts": "Requests in flight whose prompt is long.",
    "daily": "Tokens a day, in the tenant's calendar.",
    "monthly": "Tokens a month, in the tenant's calendar.",
}
_key_option = click.option("--key", metavar="NAME", help="Of this key of the tenant, by name or id.")
_model_option = click.option("--model", default="", metavar="MODEL", help="For this model alone.")


@click.group()
def quota() -> None:
    """Quotas: how much tenants may use."""


@quota.command("set")
@config_option
@json_option
@click.argument("tenant")
@_key_option
@_model_option
@click.option("--requests", type=click.IntRange(0), metavar="N", help=_HELP["requests"])
@click.option("--tokens", type=click.IntRange(0), metavar="N", help=_HELP["tokens"])
@click.option("--streams", type=click.IntRange(0), metavar="N", help=_HELP["streams"])
@click.option("--long-prompts", type=click.IntRange(0), metavar="N", help=_HELP["long_prompts"])
@click.option("--daily", type=click.IntRange(0), metavar="N", help=_HELP["daily"])
@click.option("--monthly", type=click.IntRange(0), metavar="N", help=_HELP["monthly"])
@click.option("--strict/--no-strict", default=None, help="Never deliver more, at the price of admitting less.")
def quota_set(
    config: str | None, as_json: bool, tenant: str, key: str | None, model: str, **given: int | bool | None
) -> None:
    """Set limits; 0 is none, and what is not given stays as it is. Gateways go by them within a second."""
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("give at least one limit: --tokens N, say")

    async def change(store: "Store") -> "QuotaRow":
        from msgspec.structs import replace  # noqa: PLC0415

        before, version = await _now(store, tenant, key, model)
        limits = replace(before, **changes)
        return await store.quotas.set(tenant, limits, by=local_actor(), key=key, model=model, version=version)

    _print([with_store(config, change)], as_json)


@quota.command("show")
@config_option
@json_option
@click.argument("tenant")
def quota_show(config: str | None, as_json: bool, tenant: str) -> None:
    """Show all limits of a tenant: its own, of models for it, of its keys."""
    _print(with_store(config, lambda store: store.quotas.of_tenant(tenant)), as_json)


@quota.command("clear")
@config_option
@json_option
@click.argument("tenant")
@_key_option
@_model_option
def quota_clear(config: str | None, as_json: bool, tenant: str, key: str | None, model: str) -> None:
    """Remove limits, and show what they were."""
    row = with_store(config, lambda store: store.quotas.clear(tenant, by=local_actor(), key=key, model=model))
    _print([row], as_json)


async def _now(store: "Store", tenant: str, key: str | None, model: str) -> "tuple[Limits, int]":
    """The limits as they are and their version; 0 where there are none yet."""
    from gateway.core.accounts import Limits  # noqa: PLC0415
    from shared.errors import UnknownRecordError  # noqa: PLC0415

    await store.tenants.one(tenant)  # a name that nobody has is an error, and no limits are none
    if key is not None:
        await store.keys.one(key, tenant=tenant)
    try:
        row = await store.quotas.one(tenant, key=key, model=model)
    except UnknownRecordError:
        return Limits(), 0
    return row.limits, row.version


def _print(rows: "Sequence[QuotaRow]", as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    print_table(
        ("key", "model", *(name.replace("_", " ") for name in BOUNDS), "strict", "changed"),
        [
            (
                *(row.key_id or "all", row.model or "all"),
                *(str(getattr(row.limits, name) or "-") for name in BOUNDS),
                *("yes" if row.limits.strict else "no", shown_time(row.updated_at)),
            )
            for row in rows
        ],
    )
