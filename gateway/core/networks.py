"""Networks, and where a request really comes from. Pure.

An address is compared as a number: a set of networks is compiled once, and asked with shifts. IPv4 in IPv6 clothes
(`::ffff:192.0.2.1`) is IPv4, wherever it turns up.
"""

import functools
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

HOPS: Final = 32
"""Entries of X-Forwarded-For that are looked at, from the right."""
_LONGEST: Final = 64
_REMEMBERED: Final = 4096
"""Addresses whose text was read lately: proxies, and clients that come again."""
_V4, _V6 = 4, 6
_BITS = {_V4: 32, _V6: 128}
_SITE: Final = 64
"""A network of IPv6 that belongs to one customer: who has one address of it has them all."""


class Address(NamedTuple):
    """An IP address as a number."""

    version: int
    number: int

    def __str__(self) -> str:
        return str((ipaddress.IPv4Address if self.version == _V4 else ipaddress.IPv6Address)(self.number))

    @property
    def source(self) -> tuple[int, int]:
        """Who it stands for: all of an IPv4 address, the first 64 bits of an IPv6 one."""
        return (self.version, self.number if self.version == _V4 else self.number >> (_BITS[_V6] - _SITE))


class Networks(msgspec.Struct, frozen=True, gc=False):
    """A compiled set: for each IP version and prefix length in it, the prefixes."""

    prefixes: tuple[tuple[int, int, frozenset[int]], ...] = ()

    def __contains__(self, address: Address) -> bool:
        for version, shift, prefixes in self.prefixes:
            if version == address.version and address.number >> shift in prefixes:
                return True
        return False

    def __bool__(self) -> bool:
        return bool(self.prefixes)


def canonical(text: str) -> str:
    """A network as it is kept: `192.0.2.1` is `192.0.2.1/32`, hexadecimal digits are small, IPv4 is never in IPv6.

    Raises:
        ValueError: If it is no network, or has bits beyond its prefix; the message says so.
    """
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is no network: give one such as 192.0.2.0/24 or 2001:db8::/32") from None
    if "%" in text:
        raise ValueError(f"{text!r} names an interface, which means nothing elsewhere")
    given = ipaddress.ip_address(text.strip().partition("/")[0])
    if given != network.network_address:
        raise ValueError(f"{text!r} has bits beyond its prefix: the network is {network}, the address {given}")
    if isinstance(network, ipaddress.IPv6Network):
        mapped = network.network_address.ipv4_mapped
        if mapped is not None and network.prefixlen >= 96:  # noqa: PLR2004 - bits of ::ffff:0:0/96
            network = ipaddress.ip_network((int(mapped), network.prefixlen - 96))
    return str(network)


def compiled(networks: Iterable[str]) -> Networks:
    """The set of these canonical networks. Raises ValueError for what is none."""
    found: dict[tuple[int, int], set[int]] = {}
    for text in networks:
        network = ipaddress.ip_network(text)
        shift = _BITS[network.version] - network.prefixlen
        found.setdefault((network.version, shift), set()).add(int(network.network_address) >> shift)
    return Networks(tuple((version, shift, frozenset(some)) for (version, shift), some in sorted(found.items())))


@functools.lru_cache(_REMEMBERED)
def parsed(text: str) -> Address | None:
    """The address that stands there, with or without a port, in brackets or not; None if there is none."""
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    if text.startswith("["):
        text, bracket, port = text[1:].partition("]")
        if not bracket or (port and not _port(port)):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _port(":" + port):
            return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return Address(address.version, int(address))


def client(peer: str, forwarded: Sequence[str], trusted: Networks) -> Address | None:
    """Who asks: the peer itself, or, if a trusted proxy is the peer, whom it says it asks for.

    Each proxy appends to X-Forwarded-For whom it was asked by, so what is right of an untrusted entry is true and what
    is left of it is anybody's word: the rightmost entry that is no trusted proxy is the client. Where an entry cannot
    be read the nearest proxy that can be counts. `forwarded` are the lines of that header, in order; None if not even
    the peer has an address.
    """
    address = parsed(peer)
    if address is None or not trusted or address not in trusted:
        return address
    for entry in reversed(",".join(forwarded).rsplit(",", HOPS)[-HOPS:]):
        hop = parsed(entry)
        if hop is None:
            return address
        address = hop
        if address not in trusted:
            return address
    return address


def _port(text: str) -> bool:
    """`:` and a number."""
    return text[0] == ":" and len(text) <= len(":65535") and text[1:].isascii() and text[1:].isdecimal()
