"""The tenant `demo` and its key: made at the first `up`, kept by the later ones."""

import contextlib
import hmac
from pathlib import Path

from gateway.core.keys import fingerprint, well_formed
from gateway.store.rows import Actor
from gateway.store.store import Store
from gateway.up.files import read_private, write_private
from shared.errors import ConflictError
from shared.settings import Settings

TENANT = "demo"
KEY_FILE = "demo.key"
_KEY_NAME = "demo"
_BY = Actor("system", name="evenflow up")


async def demo_key(settings: Settings, state: Path) -> str:
    """Return the demo tenant's key, kept in `<state>/demo.key` (0600).

    A key in that file that the store does not take (the store was lost, the key revoked) is replaced by a new one, and
    the one that it replaces is revoked, so that there is never more than one.

    Raises:
        StoreError: the store cannot be opened.
        SettingsError: the pepper cannot be used.
        StartError: the file cannot be read or written.
    """
    path = state / KEY_FILE
    kept = read_private(path)
    store = await Store.open(settings)
    try:
        if kept is not None and await _opens(store, kept):
            return kept
        secret = await _new(store)
    finally:
        await store.close()
    write_private(path, secret + "\n")
    return secret


async def _opens(store: Store, key: str) -> bool:
    if not well_formed(key):
        return False
    mine = fingerprint(store.pepper, key)
    credentials = (await store.snapshot()).credentials
    return any(row.expires_at is None and hmac.compare_digest(row.hash, mine) for row in credentials)


async def _new(store: Store) -> str:
    with contextlib.suppress(ConflictError):  # there already
        await store.tenants.create(TENANT, by=_BY)
    for row in await store.keys.all(TENANT):
        if row.name == _KEY_NAME and row.revoked_at is None:
            await store.keys.revoke(row.id, by=_BY)
    _, secret = await store.keys.create(TENANT, _KEY_NAME, by=_BY)
    return secret
