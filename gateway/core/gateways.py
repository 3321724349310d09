"""Which processes of which gateways are alive, as far as their heartbeats tell."""

import msgspec

SILENT_S = 10.0
"""A gateway without a heartbeat for this long is dead."""
GRACE_S = 5.0
"""Time for a dead gateway's workers to say what they had made, before its requests are closed without it."""


class _Life(msgspec.Struct):
    """What was heard of one gateway: its epochs with the time of the last sign of each, and the one that beats."""

    epochs: dict[str, float] = {}
    current: str = ""
    before: str = ""
    since: float = 0.0
    doubled_at: float = float("-inf")


class Gateways:
    """Heartbeats in, deaths out. `now` is in seconds on any clock that never runs backwards.

    `gid` and `gep` are our own: other epochs of our name came before.
    """

    def __init__(self, now: float, gid: str, gep: str) -> None:
        self._gid = gid
        self._lives: dict[str, _Life] = {}
        self.heard(now, gid, gep)

    def heard(self, now: float, gid: str, gep: str) -> bool:
        """A heartbeat. True if it is the first of this process."""
        life = self._lives.setdefault(gid, _Life())
        new = life.current != gep
        back = new and gep == life.before  # a process that was replaced does not come back
        if back:
            life.doubled_at = now
        if new:
            life.before, life.current, life.since = life.current, gep, now
        life.epochs[gep] = now
        return new and not back

    def doubled(self, now: float, gid: str) -> bool:
        """Two processes use that name, or did within the last 10 s."""
        life = self._lives.get(gid)
        return life is not None and now < life.doubled_at + SILENT_S

    def seen(self, now: float, gid: str, gep: str) -> None:
        """A record of that process was read, perhaps an old one: its silence counts from here, if nothing was heard."""
        self._lives.setdefault(gid, _Life()).epochs.setdefault(gep, float("-inf") if gid == self._gid else now)

    def heard_again(self, now: float) -> None:
        """It was us who did not listen: every silence starts anew."""
        for life in self._lives.values():
            for gep in life.epochs:
                if gep == life.current or life.epochs[gep] > life.since:
                    life.epochs[gep] = now

    def dead(self, now: float, gid: str, gep: str) -> bool:
        """Replaced by a newer process of its name, or silent for 10 s; and 5 s more have passed."""
        life = self._lives.get(gid)
        if life is None or gep not in life.epochs:
            return False
        last = life.epochs[gep]
        if gep != life.current and life.since > last:
            return now >= life.since + GRACE_S
        return now >= last + SILENT_S + GRACE_S

    def forget(self, wanted: set[tuple[str, str]]) -> None:
        """Drop the epochs that neither beat nor own a record in `wanted`."""
        for gid, life in list(self._lives.items()):
            life.epochs = {gep: at for gep, at in life.epochs.items() if gep == life.current or (gid, gep) in wanted}


class Stores:
    """Which gateways keep another store than `mine`, as far as they were heard within 10 s."""

    def __init__(self, mine: str) -> None:
        self._mine = mine
        self._others: dict[str, float] = {}

    def heard(self, now: float, gid: str, store_id: str) -> bool:
        """A heartbeat of another gateway. True if it is the first that names another store."""
        known = self._others.pop(gid, float("-inf")) > now - SILENT_S
        if store_id == self._mine:
            return False
        self._others[gid] = now
        return not known

    def strangers(self, now: float) -> list[str]:
        """Their names, sorted."""
        self._others = {gid: at for gid, at in self._others.items() if at > now - SILENT_S}
        return sorted(self._others)
