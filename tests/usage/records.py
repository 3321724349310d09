"""Records as authors write them, for tests."""

from gateway.core.ledger import Entry
from shared.wire import Check, Close, Open, Orphan

ZERO = {
    "cached": 0,
    "accepted": 0,
    "proposed": 0,
    "device_seconds": 0.0,
    "queue_ms": 0.0,
    "prefill_ms": 0.0,
    "decode_ms": 0.0,
}


def opened(rid, n=1, *, choice=0, attempt=0, wid="w1", gep="e1", streamed=True):
    return Open(
        n=n, gep=gep, aid=f"{rid}.{choice}.{attempt}", tenant="t1", key="k1", model="m", version="1", wid=wid,
        reserved=0, max_tokens=100, strict=False, label=f"label-{rid}", streamed=streamed,
    )  # fmt: skip


def check(rid, n, charged, *, gep="e1"):
    return Check(n=n, gep=gep, aid=rid, prompt=7, charged=charged)


def closed(rid, n, charged, *, gep="e1", outcome="stop", **more):
    values = {**ZERO, "prompt": 7, "generated": charged, **more}
    return Close(
        n=n, gep=gep, aid=rid, tenant="t1", key="k1", model="m", version="1", charged=charged, outcome=outcome, **values
    )


def orphan(rid, generated, acked, *, n=1, choice=0, attempt=0):
    return Orphan(n=n, wep="x", aid=f"{rid}.{choice}.{attempt}", generated=generated, acked=acked)


def stream(*records, start=1):
    """`(author, record)` pairs as they lie in the stream; an author is `g1`, `w1` and so on."""
    return [
        Entry(number, 1000 + number, author[0], author, record)
        for number, (author, record) in enumerate(records, start)
    ]
