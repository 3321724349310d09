"""What a key may do, checked before it is kept: each list in the one form in which it is stored and compared."""

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.core.keys import SCOPES
from gateway.core.networks import canonical
from shared.errors import InvalidRecordError

MOST: Final = 100
"""Entries of one list."""
_LONGEST_MODEL: Final = 255
_LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def check_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """The scopes, in the order in which they are known.

    Raises:
        InvalidRecordError: If there are none, or one is unknown.
    """
    given = _list("scopes", scopes)
    if unknown := [scope for scope in given if scope not in SCOPES]:
        raise InvalidRecordError(f"there is no scope {unknown[0]!r}: there are {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in given)


def check_models(models: Iterable[str] | None) -> tuple[str, ...] | None:
    """The models' names, `llama-*` for all that begin so; None for all.

    Raises:
        InvalidRecordError: If there are none or too many, or a name cannot be one.
    """
    if models is None:
        return None
    given = _list("models", models)
    for name in given:
        if not 1 <= len(name) <= _LONGEST_MODEL or not name.isprintable() or "*" in name[:-1]:
            raise InvalidRecordError(
                f"{name!r} is no model's name: 1 to {_LONGEST_MODEL} printable characters, * only at the end"
            )
    return given


def check_networks(networks: Iterable[str] | None) -> tuple[str, ...] | None:
    """The networks in their canonical form; None for all.

    Raises:
        InvalidRecordError: If there are none or too many, or one is no network.
    """
    if networks is None:
        return None
    try:
        return tuple(dict.fromkeys(map(canonical, _list("networks", networks))))
    except ValueError as error:
        raise InvalidRecordError(str(error)) from None


def check_expiry(expires_at: int | None, now: int) -> int | None:
    """When a key expires, in ms since 1970; None for never. Raises InvalidRecordError if that is not ahead."""
    if expires_at is not None and not now < expires_at <= _LAST_MS:
        raise InvalidRecordError("a key expires in the future, before the year 10000: to end one now, revoke it")
    return expires_at


def kept(texts: Iterable[str] | None) -> str | None:
    """A list as the tables keep it."""
    return None if texts is None else msgspec.json.encode(list(texts)).decode()


def _list(what: str, given: Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(given))
    if not 1 <= len(found) <= MOST:
        raise InvalidRecordError(f"a key has 1 to {MOST} {what}, not {len(found)}")
    return found
