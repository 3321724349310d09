import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.networks import HOPS, Networks, canonical, client, compiled, parsed

addresses = st.ip_addresses()
networks = st.one_of(
    st.builds(lambda a, n: ipaddress.ip_network((int(a), n), strict=False), st.ip_addresses(v=4), st.integers(0, 32)),
    st.builds(lambda a, n: ipaddress.IPv6Network((int(a), n), strict=False), st.ip_addresses(v=6), st.integers(0, 128)),
)
PROXIES = compiled(["10.0.0.0/8", "fd00::/8"])


def plain(address):
    """IPv4 out of its IPv6 clothes."""
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


@given(st.lists(networks, max_size=6), addresses)
def test_an_address_is_in_a_set_exactly_if_it_is_in_one_of_its_networks(some, address):
    kept = [canonical(str(network)) for network in some]
    address = plain(address)
    expected = any(
        address in network for network in map(ipaddress.ip_network, kept) if network.version == address.version
    )
    assert (parsed(str(address)) in compiled(kept)) == expected


@given(networks)
def test_a_canonical_network_stays_as_it_is_and_means_the_same(network):
    kept = canonical(str(network))
    assert canonical(kept) == kept
    assert parsed(str(network.network_address)) in compiled([kept])
    assert parsed(str(network.broadcast_address)) in compiled([kept])


@pytest.mark.parametrize(
    ("given_as", "kept"),
    [
        ("192.0.2.1", "192.0.2.1/32"),
        (" 10.0.0.0/8 ", "10.0.0.0/8"),
        ("10.0.0.0/255.0.0.0", "10.0.0.0/8"),
        ("2001:DB8:0::/32", "2001:db8::/32"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::/0", "::/0"),
    ],
)
def test_how_networks_are_kept(given_as, kept):
    assert canonical(given_as) == kept


@pytest.mark.parametrize(
    "wrong",
    ["", "x", "10.0.0.0/33", "10.1.2.3/8", "300.0.0.0/8", "fe80::%eth0/64", "10/8", "١.0.0.0/8", "1.2.3.4,5.6.7.8"],
)
def test_what_is_no_network_is_refused(wrong):
    with pytest.raises(ValueError, match=r"no network|beyond its prefix|interface"):
        canonical(wrong)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:8080", "192.0.2.1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("[::FFFF:192.0.2.1]:1", "192.0.2.1"),
        *(
            (bad, "None")
            for bad in ("", "unknown", "_hidden", "192.0.2.1:", "192.0.2.1:x", "192.0.2.1:123456", "[::1", "[::1]x")
        ),
        *((bad, "None") for bad in ("192.0.2.01", "1.2.3", '"192.0.2.1"', "1" * 10_000, "192.0.2.1:٣", "::1:::")),
    ],
)
def test_addresses_as_they_are_written(text, address):
    assert str(parsed(text)) == address


@pytest.mark.parametrize(
    ("peer", "lines", "who"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["198.51.100.7"], "192.0.2.1"),  # nobody's proxy: its word is no word
        ("10.0.0.1", ["198.51.100.7"], "198.51.100.7"),
        ("::ffff:10.0.0.1", ["::ffff:198.51.100.7"], "198.51.100.7"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.7"], "198.51.100.7"),  # the left one is what the client says of itself
        ("10.0.0.1", ["198.51.100.7, 10.0.0.2", "fd00::1"], "198.51.100.7"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),  # all of them ours: the first one asks
        ("10.0.0.1", ["198.51.100.7, nonsense, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("", ["198.51.100.7"], "None"),
        ("10.0.0.1", ["198.51.100.7" + ",10.0.0.2" * HOPS], "10.0.0.2"),  # looks so far and no further
    ],
)
def test_who_asks(peer, lines, who):
    assert str(client(peer, lines, PROXIES)) == who


def test_without_trusted_proxies_the_header_says_nothing():
    assert str(client("10.0.0.1", ["198.51.100.7"], Networks())) == "10.0.0.1"


hops = st.one_of(addresses.map(str), st.text(max_size=20))


@given(addresses, st.lists(st.lists(hops, max_size=5).map(", ".join), max_size=4))
@example(ipaddress.ip_address("10.0.0.1"), ["\x00", ",,,"])
def test_whatever_the_header_says_an_untrusted_peer_is_itself_and_nothing_breaks(peer, lines):
    told = client(str(peer), lines, PROXIES)
    if parsed(str(peer)) not in PROXIES:
        assert told == parsed(str(peer))
    assert told is not None


@given(
    st.lists(st.ip_addresses(v=4, network="10.0.0.0/8"), min_size=1, max_size=5),
    st.ip_addresses(v=4, network="198.51.100.0/24"),
    st.lists(hops, max_size=5),
)
def test_what_a_client_writes_into_the_header_itself_changes_nothing(proxies, asking, written):
    """Each proxy appends whom it was asked by: only that counts."""
    peer, *behind = map(str, proxies)
    line = ", ".join([*written, str(asking), *reversed(behind)])
    assert str(client(peer, [line], PROXIES)) == str(asking)


def test_a_source_is_an_ipv4_address_or_a_site_of_ipv6():
    assert parsed("192.0.2.1").source != parsed("192.0.2.2").source
    assert parsed("2001:db8::1").source == parsed("2001:db8::ffff:0:0:2").source
    assert parsed("2001:db8::1").source != parsed("2001:db8:0:1::1").source
