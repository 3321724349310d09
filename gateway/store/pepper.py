"""The secret that keys are hashed with, in a file of its own beside the store, never in it."""

import contextlib
import os
import secrets
from pathlib import Path

from shared.errors import SettingsError

PEPPER_BYTES = 32


def read_pepper(path: Path, *, create: bool) -> bytes:
    """The pepper in `path`, at least 32 bytes. With `create` a missing one is made, readable by its owner only.

    Processes that start together agree: each writes a file of its own, and linking it into place succeeds for the first
    and only for the first.

    Raises:
        SettingsError: If it is missing and may not be made, cannot be read, or is too short.
    """
    try:
        if create and not path.exists():
            _create(path)
        pepper = path.read_bytes()
    except FileNotFoundError:
        right = f"must exist, {PEPPER_BYTES} random bytes or more; a lost pepper makes every key useless"
        raise SettingsError(f"store.pepper_file: {path} {right}") from None
    except OSError as error:
        raise SettingsError(f"store.pepper_file: cannot use {path}: {error.strerror}") from error
    if len(pepper) < PEPPER_BYTES:
        raise SettingsError(f"store.pepper_file: {path} holds {len(pepper)} bytes; must be {PEPPER_BYTES} or more")
    return pepper


def _create(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(PEPPER_BYTES))
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()
