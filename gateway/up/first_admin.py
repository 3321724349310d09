"""The first admin: made with the store, its password kept beside it for whoever started `up`."""

import secrets
from pathlib import Path

from gateway.store.passwords import check_password
from gateway.store.rows import Actor
from gateway.store.store import Store
from gateway.up.files import read_private, write_private
from shared.errors import InvalidRecordError
from shared.settings import Settings

ADMIN = "admin"
PASSWORD_FILE = "admin.password"  # noqa: S105 - where it is, not what
_RANDOM_BYTES = 24
_BY = Actor("system", name="evenflow up")


async def first_admin(settings: Settings, state: Path) -> bool:
    """Make the admin `admin`, if the store has none at all; return whether the password in the file opens the door.

    It is kept in `<state>/admin.password` (0600). A password that somebody changed stays as they chose it. In profile
    prod nobody is made: `evenflow admin create` is for that.

    Raises:
        StoreError: the store cannot be opened.
        SettingsError: the pepper cannot be used.
        StartError: the file cannot be read or written.
    """
    path = state / PASSWORD_FILE
    kept = read_private(path)
    store = await Store.open(settings)
    try:
        if not await store.admins.all() and settings.profile != "prod":
            kept = await _make(store, path, kept)
        return kept is not None and await store.admins.verify(ADMIN, kept) is not None
    finally:
        await store.close()


async def _make(store: Store, path: Path, kept: str | None) -> str:
    """Make the admin, with the password that is in the file already if it can be one."""
    if kept is None or not _possible(kept):
        kept = secrets.token_urlsafe(_RANDOM_BYTES)
        write_private(path, kept + "\n")  # before it is used: a crash in between shuts nobody out
    await store.admins.create(ADMIN, kept, by=_BY)
    return kept


def _possible(password: str) -> bool:
    try:
        check_password(password)
    except InvalidRecordError:
        return False
    return True
