"""Balances what clients saw against what stands in the store: every request once, for what its client received."""

import sqlite3
from typing import Any

from tests.chaos.load import CUT, HUNG, REFUSED, WHOLE, Asked, null_text
from tests.e2e.stack import Stack

BOUND = 64 + 36
"""Tokens of one check, and what may be on its way between a gateway and its client."""
LOST = "gateway_lost"
SLACK_S = 2.0
"""Between the signal that kills a gateway and the last connection that it takes with it, on a busy machine."""

Row = dict[str, Any]
Span = tuple[float, float]


def rows(stack: Stack) -> dict[str, list[Row]]:
    """All usage of the store by the name that the client gave; a list each, so that two would be seen."""
    connection = sqlite3.connect(stack.directory / ".evenflow" / "evenflow.db", timeout=30)
    try:
        connection.row_factory = sqlite3.Row
        found: dict[str, list[Row]] = {}
        for row in connection.execute("SELECT * FROM usage"):
            found.setdefault(row["request_id"], []).append(dict(row))
        return found
    finally:
        connection.close()


def must_have(asked: Asked) -> bool:
    """A worker was asked, as its client can tell (a status alone may be of a request that still waits for one)."""
    return asked.received > 0 or asked.end in (WHOLE, "worker_failed")


async def faults(asked: list[Asked], found: dict[str, list[Row]], outages: list[Span], *, exact: bool) -> list[str]:
    """Everything that is not as promised, a line each.

    `outages` are the times from a gateway's death until the next one serves. `exact`: the null engine's text can be told
    in advance.
    """
    told = []
    for one in asked:
        mine = found.get(one.rid, [])
        told += [f"{one.rid} ({one.kind}, {one.end}): {what}" for what in one.wrong]
        told += [f"{one.rid} ({one.kind}, {one.end}): {what}" for what in _ending(one, outages)]
        if exact and one.text != (await null_text(one.rid, one.tokens))[: one.received]:
            told.append(f"{one.rid} ({one.kind}, {one.end}): a gap, a doubled token or somebody else's: {one.text!r}")
        told += [f"{one.rid} ({one.kind}, {one.end}): {what}" for what in _booking(one, mine, outages)]
    names = {one.rid for one in asked}
    told += [f"a row of {name!r}, which nobody asked for" for name in found if name not in names]
    return told


def widest(asked: list[Asked], found: dict[str, list[Row]]) -> int:
    """Of all streams that were booked for a dead gateway: most tokens between what was received and what was charged."""
    lost = [(one, row) for one in asked for row in found.get(one.rid, []) if row["outcome"] == LOST and one.stream]
    return max((abs(row["charged"] - one.received) for one, row in lost), default=0)


def _ending(one: Asked, outages: list[Span]) -> list[str]:
    if one.end == HUNG:
        return ["it neither ended nor broke off"]
    if one.end in (CUT, REFUSED) and not _during(one, outages):
        return ["no gateway was killed in its time"]
    if one.end == WHOLE and not one.received == one.usage <= one.tokens:
        return [f"{one.received} tokens came, {one.usage} were counted, {one.tokens} wanted"]
    return []


def _booking(one: Asked, mine: list[Row], outages: list[Span]) -> list[str]:
    if len(mine) > 1:
        return [f"{len(mine)} rows"]
    if not mine:
        return ["no row"] if must_have(one) else []
    [row] = mine
    charged, outcome = row["charged"], row["outcome"]
    if one.end == REFUSED:
        return ["a row, though it was never sent"]
    if outcome == LOST:
        if not _during(one, outages):
            return ["booked as lost with its gateway, which lived"]
        received = one.received if one.stream else 0
        return [] if abs(charged - received) <= BOUND else [f"{charged} tokens charged, {received} received"]
    if one.end == WHOLE and (charged, outcome in ("stop", "length")) != (one.usage, True):
        return [f"{charged} tokens charged as {outcome}, {one.usage} in the answer"]
    if one.end == CUT:  # its gateway had closed it before it died, or took the blow for the client's leaving
        return [] if abs(charged - one.received) <= BOUND else [f"{charged} tokens charged, {one.received} received"]
    if one.end != WHOLE and (outcome != one.end or not one.received <= charged <= one.received + 2):
        return [f"{charged} tokens charged as {outcome}, {one.received} received"]
    return []


def _during(one: Asked, outages: list[Span]) -> bool:
    return any(began - SLACK_S <= one.ended_at and one.at <= ended + SLACK_S for began, ended in outages)
