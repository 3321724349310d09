"""What the bus must keep: the stream of usage records, made by the identity `provision`, which takes no other part."""

import asyncio
import secrets
from typing import Any, Final

import msgspec

from shared.bus import Bus
from shared.errors import BusError, StartError
from shared.identity import find_identity
from shared.settings import NatsSettings
from shared.subjects import PREFIX, USAGE

KEPT_BYTES = 512 * 1024 * 1024
"""About 800,000 requests. Older records go first: they have been written to the store long since."""
_OTHER_CONFIGURATION: Final = 10058
_WITHIN_S = 10.0

STREAM: Final[dict[str, Any]] = {
    "name": USAGE,
    "subjects": [f"{PREFIX}.usage.>"],
    "storage": "file",
    "retention": "limits",
    "discard": "old",
    "max_bytes": KEPT_BYTES,
    "max_age": 0,
    "max_msg_size": 64 * 1024,
    "num_replicas": 1,
    "allow_direct": True,
    "deny_delete": True,
    "deny_purge": True,
}


class _Refusal(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Made(msgspec.Struct):
    error: _Refusal | None = None


async def make_streams(settings: NatsSettings) -> None:
    """Make the streams, or bring those that are there to what this version wants. Repeating it changes nothing.

    Raises:
        StartError: NATS cannot be reached, has no JetStream, or refuses.
        SettingsError: `provision` has no identity in the directory of the settings.
    """
    identity = find_identity(settings.identities, "provision", "provision")
    bus = Bus("provision", secrets.token_hex(8))
    try:
        await bus.connect(settings.url, identity=identity, credentials=settings.credentials)
        await _make(bus)
    except BusError as error:
        raise StartError(f"the stream of usage records cannot be made: {error}") from error
    finally:
        await bus.close()


async def _make(bus: Bus) -> None:
    wanted = msgspec.json.encode(STREAM)
    until = asyncio.get_running_loop().time() + _WITHIN_S
    while True:
        made = _MADE.decode(await bus.request(f"$JS.API.STREAM.CREATE.{USAGE}", wanted))
        if made.error is not None and made.error.err_code == _OTHER_CONFIGURATION:
            made = _MADE.decode(await bus.request(f"$JS.API.STREAM.UPDATE.{USAGE}", wanted))
        if made.error is None:
            return
        if asyncio.get_running_loop().time() > until:
            raise BusError(made.error.description)
        await asyncio.sleep(0.1)  # a server that has just started may not be ready for it yet


_MADE = msgspec.json.Decoder(_Made)
