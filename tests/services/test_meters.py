"""What workers announce is in one scrape of a gateway, within bounds."""

import re
import time

import pytest

from gateway.core.fleet import Fleet
from gateway.services.meters import Meters
from gateway.services.quotas import Allowances
from gateway.services.streams import Streams
from gateway.services.turnstile import Turnstile
from shared.settings import LimitSettings
from shared.telemetry import Metrics
from shared.wire import Ann, Device, Draft, Kv, Slots, Speed, Version

VERSION = Version(model="smol", version="7", digest="", context=8, max_output=8, vocab_hash="")
ANN = Ann(
    wep="e",
    n=1,
    state="ready",
    pool="fast",
    versions=(VERSION,),
    slots=Slots(total=4, free=1, prefill=1, decode=2),
    kv=Kv(total=4096, free=1024),
    speed=Speed(prefill_tps=321.5, itl_ms={1: 12.5, 4: 31.25}, bound_tps=90.5),
    draft=Draft(kind="ngram", length=5, accepted=30, proposed=40, tokens_per_step=2.5),
    queue=3,
    device=Device(kind="cuda", driver="570.1", runtime="torch 2.9", kernel="flash 2", memory=24 << 30),
    load_progress=1.0,
)


class Bus:
    inbox = "_INBOX.g1.e"
    connected = True


@pytest.fixture
def scraped():
    """Scrapes a gateway that knows the given workers."""
    made = []

    def scrape(**anns: Ann) -> dict[str, float]:
        fleet, limits, metrics = Fleet(), LimitSettings(), Metrics("test")
        made.append(metrics)
        for wid, ann in anns.items():
            fleet.announced(0.0, wid, ann)
        meters = Meters(metrics)
        meters.watch(
            fleet,
            Streams("g1", "e", Bus(), fleet, limits),
            Turnstile(fleet, limits),
            Allowances(limits, time.monotonic, time.time),
        )
        return {
            found[1]: float(found[2])
            for found in re.finditer(r"^(evenflow_worker.*) (\S+)$", meters.scrape().decode(), re.MULTILINE)
        }

    yield scrape
    for metrics in made:
        metrics.close()


async def test_every_figure_of_a_worker(scraped):
    states = {"starting": 0, "loading": 0, "ready": 1, "draining": 0, "gone": 0}
    assert scraped(w1=ANN) == {
        'evenflow_worker_info{device="cuda",driver="570.1",kernel="flash 2",model="smol",pool="fast",'
        'runtime="torch 2.9",version="7",worker="w1"}': 1,
        'evenflow_worker_slots{worker="w1"}': 4,
        'evenflow_worker_slots_free{worker="w1"}': 1,
        'evenflow_worker_slots_prefill{worker="w1"}': 1,
        'evenflow_worker_slots_decode{worker="w1"}': 2,
        'evenflow_worker_queue{worker="w1"}': 3,
        'evenflow_worker_in_flight{worker="w1"}': 0,
        'evenflow_worker_kv_total{worker="w1"}': 4096,
        'evenflow_worker_kv_free{worker="w1"}': 1024,
        'evenflow_worker_prefill_speed{worker="w1"}': 321.5,
        'evenflow_worker_decode_bound{worker="w1"}': 90.5,
        'evenflow_worker_itl_seconds{batch="1",worker="w1"}': 0.0125,
        'evenflow_worker_itl_seconds{batch="4",worker="w1"}': 0.03125,
        'evenflow_worker_draft_length{worker="w1"}': 5,
        'evenflow_worker_draft_proposed{worker="w1"}': 40,
        'evenflow_worker_draft_accepted{worker="w1"}': 30,
        'evenflow_worker_tokens_per_step{worker="w1"}': 2.5,
        'evenflow_worker_load_progress{worker="w1"}': 1,
        'evenflow_worker_memory_bytes{worker="w1"}': 24 << 30,
        **{f'evenflow_worker_state{{state="{state}",worker="w1"}}': value for state, value in states.items()},
    }


async def test_a_worker_cannot_flood_the_scrape(scraped):
    loud = Ann(
        wep="e",
        n=1,
        state="ready",
        versions=tuple(
            Version(model=f"m{i}", version="v" * 10_000, digest="", context=8, max_output=8, vocab_hash="")
            for i in range(1000)
        ),
        slots=Slots(total=1, free=1),
        speed=Speed(itl_ms=dict.fromkeys(range(1000), 1.0)),
        device=Device(kernel="k" * 10_000),
    )
    seen = scraped(w1=loud, w2=ANN)
    assert len(seen) < 100
    assert max(map(len, seen)) < 1000
    assert 'evenflow_worker_slots{worker="w2"}' in seen
