"""The audit log's chain: each entry is sealed together with the seal of the one before it. Pure.

A seal is HMAC-SHA256 under a key that only holders of the pepper can make: whoever can write to the database alone can
neither change an entry nor leave one out without breaking the chain, nor forge a new chain.
"""

import hmac
from collections.abc import Iterable

import msgspec

GENESIS = bytes(32)
"""What the first entry follows."""
_PURPOSE = b"evenflow: seals of the audit log"


class Entry(msgspec.Struct, frozen=True):
    """One change. `at` in ms since 1970; `before` and `after` are JSON, `None` where there was or is nothing."""

    sequence: int
    at: int
    actor_kind: str
    actor_id: str
    actor_name: str
    source: str
    action: str
    kind: str
    object_id: str
    object_name: str
    before: str | None
    after: str | None


class Sealed(msgspec.Struct, frozen=True):
    """An entry as it is kept. `previous` is the seal of the entry before it."""

    entry: Entry
    previous: bytes
    hash: bytes


class Broken(msgspec.Struct, frozen=True):
    """Where a chain does not hold, and why."""

    sequence: int
    why: str


def sealing_key(pepper: bytes) -> bytes:
    """The key of the seals, 32 bytes."""
    return hmac.digest(pepper, _PURPOSE, "sha256")


def seal(key: bytes, previous: bytes, entry: Entry) -> Sealed:
    """Put an entry behind the one whose seal is `previous`."""
    return Sealed(entry, previous, _seal(key, previous, entry))


def verify(key: bytes, chain: Iterable[Sealed], *, sequence: int = 0, previous: bytes = GENESIS) -> Broken | None:
    """The first place where a chain breaks; None if it holds. It goes on from entry `sequence`, sealed `previous`."""
    for sealed in chain:
        sequence += 1
        if sealed.entry.sequence != sequence:
            return Broken(sequence, f"entry {sequence} is missing: {sealed.entry.sequence} follows {sequence - 1}")
        if not hmac.compare_digest(sealed.previous, previous):
            return Broken(sequence, f"entry {sequence} does not follow the one before it")
        if not hmac.compare_digest(sealed.hash, _seal(key, previous, sealed.entry)):
            return Broken(sequence, f"entry {sequence} is not as it was written")
        previous = sealed.hash
    return None


def _seal(key: bytes, previous: bytes, entry: Entry) -> bytes:
    return hmac.digest(key, previous + _encoder.encode(entry), "sha256")


_encoder = msgspec.json.Encoder(order="deterministic")
