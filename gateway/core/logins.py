"""How soon somebody may try the next password: by where they come from, and by the name they try. Pure.

The first few tries are free; after them each has to wait twice as long as the one before, up to a bound that is low for
a name, so that strangers cannot shut its owner out for long, and high for a source.
"""

import ipaddress
from collections import OrderedDict
from typing import Final

import msgspec

FREE: Final = 5
FORGET_S: Final = 900.0
"""Without a try for so long, all is forgotten."""
MOST_PER_NAME_S: Final = 30.0
MOST_PER_SOURCE_S: Final = 300.0
_NETWORK_BITS: Final = 64  # who has one IPv6 address has all of its network

Key = tuple[str, str]


class _Tries(msgspec.Struct):
    count: int
    last: float
    next: float


class Logins:
    """Tries of the last quarter of an hour: of the `most` sources and names that were seen last. Times in seconds."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._tries: OrderedDict[Key, _Tries] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tries)

    def begin(self, source: str, name: str, now: float) -> float:
        """Count a try as failed before it is made, so that those at the same time count too.

        Returns 0 if it may be made; else the seconds after which it may, and it is not counted.
        """
        keys = (("source", network(source)), ("name", name))
        wait = max(self._wait(key, now) for key in keys)
        if wait <= 0:
            for key, most_s in zip(keys, (MOST_PER_SOURCE_S, MOST_PER_NAME_S), strict=True):
                self._count(key, most_s, now)
        return max(0.0, wait)

    def succeeded(self, source: str, name: str) -> None:
        """The try was no guess: its source and name start anew."""
        for key in (("source", network(source)), ("name", name)):
            self._tries.pop(key, None)

    def _wait(self, key: Key, now: float) -> float:
        tries = self._tries.get(key)
        return 0.0 if tries is None else tries.next - now

    def _count(self, key: Key, most_s: float, now: float) -> None:
        tries = self._tries.get(key)
        if tries is None or now - tries.last > FORGET_S:
            tries = self._tries[key] = _Tries(0, now, now)
            if len(self._tries) > self._most:
                self._tries.popitem(last=False)
        self._tries.move_to_end(key)
        tries.count += 1
        tries.last = now
        if tries.count >= FREE:
            tries.next = now + min(most_s, 2.0 ** min(tries.count - FREE, 60))


def network(source: str) -> str:
    """What counts as one source: an IPv4 address, or the /64 network of an IPv6 one."""
    try:
        address = ipaddress.ip_address(source)
    except ValueError:
        return source
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
