"""The proxy itself: what it passes on is what came, wherever the network cut it, and its dice fall by the seed alone."""

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.identity import Identity
from tests.chaos.lossy_proxy import Lane, Proxy, Weather, fate, kind_of
from tests.chaos.nats_wire import Piece, Splitter

PIECES = [
    Piece(b'INFO {"server_id":"x"}\r\n'),
    Piece(b"PUB ef.ghb.g1 0\r\n\r\n", "ef.ghb.g1", b""),
    Piece(b"PUB ef.w.w1.job.g1 _INBOX.g1.e.j.w1.1 10\r\nMSG x 1 9\r\r\n", "ef.w.w1.job.g1", b"MSG x 1 9\r"),
    Piece(b"+OK\r\n"),
    Piece(b"MSG ef.g.g1.f.w1 7 4\r\n\r\n\r\n\r\n", "ef.g.g1.f.w1", b"\r\n\r\n"),
    Piece(b"HPUB ef.ann.w1 12 14\r\nNATS/1.0\r\n\r\nab\r\n", "ef.ann.w1", b"ab"),
    Piece(b"HMSG _INBOX.g1.e.c.w1 3 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", "_INBOX.g1.e.c.w1", b""),
    Piece(b"PING\r\n"),
]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts=st.lists(st.integers(0, sum(len(piece.raw) for piece in PIECES)), max_size=40))
def test_pieces_come_out_whole_however_they_are_cut(cuts):
    data = b"".join(piece.raw for piece in PIECES)
    splitter, found = Splitter(), []
    edges = [0, *sorted(cuts), len(data)]
    for begin, end in pairwise(edges):
        found += splitter.feed(data[begin:end])
    assert found == PIECES


def test_byte_by_byte():
    splitter = Splitter()
    assert [piece for piece in PIECES for byte in piece.raw for piece in splitter.feed(bytes([byte]))] == PIECES


def test_what_is_no_message_is_not_passed_on():
    with pytest.raises(ValueError, match="longer than it says"):
        Splitter().feed(b"PUB a 2\r\nabc\r\n")


@pytest.mark.parametrize(
    ("subject", "kind"),
    [
        ("ef.w.w1.job.g1", "job"),
        ("ef.w.w1.credit.g1", "credit"),
        ("ef.g.g1.f.w1", "frame"),
        ("ef.usage.g.g1", "usage"),
        ("ef.ann.w1", "ann"),
        ("_INBOX.g1.e.j.w1.5", "reply"),
        ("_INBOX.w1.e.f.g1", "word"),
        ("$JS.API.DIRECT.GET.USAGE", "other"),
    ],
)
def test_kinds(subject, kind):
    assert kind_of(subject) == kind


def test_the_dice_fall_as_often_as_the_weather_says():
    weather = Weather(5, lose=0.1, gust=0.02, twice=0.2, late=0.3, late_s=0.5, cut=0.05)
    fates = [fate(weather, "g1", "up", "job", n) for n in range(4000)]
    assert fates == [fate(weather, "g1", "up", "job", n) for n in range(4000)]
    assert fates != [fate(weather, "g1", "down", "job", n) for n in range(4000)]
    copies = Counter(one.copies for one in fates)
    assert copies[0] / 4000 == pytest.approx(0.118, abs=0.03)
    assert copies[2] / 4000 == pytest.approx(0.176, abs=0.03)
    assert sum(one.cut for one in fates) / 4000 == pytest.approx(0.05, abs=0.02)
    assert 0.4 < max(one.late_s for one in fates) <= 0.5


class Line:
    """The end of a lane."""

    def __init__(self):
        self.written = []

    def is_closing(self):
        return False

    def write(self, raw):
        self.written.append(raw)


async def test_late_messages_keep_their_order_within_a_subject_and_lose_it_between_subjects():
    proxy, line = Proxy("w1", Identity(Path("nowhere")), Path("nowhere"), 0), Line()
    proxy.weather = Weather(3, late=0.5, late_s=0.05)
    lane = Lane(proxy, "up", line)
    sent = [Piece(f"{subject} {n}".encode(), subject) for n in range(50) for subject in ("ef.ann.w1", "ef.g.g1.f.w1")]
    for piece in sent:
        lane.take(piece)
    async with asyncio.timeout(30):
        while len(line.written) < len(sent):
            await asyncio.sleep(0.01)
    for subject in (b"ef.ann.w1", b"ef.g.g1.f.w1"):
        assert [raw for raw in line.written if raw.startswith(subject)] == [
            piece.raw for piece in sent if piece.raw.startswith(subject)
        ]
    assert line.written != [piece.raw for piece in sent]
