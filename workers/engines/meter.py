"""What an engine measures about itself while it runs. No clock of its own: every method takes `now` in seconds."""

from typing import Final

_WEIGHT: Final = 0.1
_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64)


class Counters:
    """Running totals in tokens; `reserved` are those of the requests running now, prompt and max_tokens."""

    def __init__(self) -> None:
        self.steps = 0
        self.prompt = 0
        self.cached = 0
        self.completion = 0
        self.accepted = 0
        self.proposed = 0
        self.prefilling = 0
        self.reserved = 0


class Meter:
    """Speeds as moving averages, and each request's share of the engine's time.

    The share: with k requests active, each is charged 1/k of the passing time. `virtual` integrates dt / k, so that a
    request's share is the difference between its end and its start, whatever others came and went in between.
    """

    def __init__(self) -> None:
        self.active = 0
        self.counters = Counters()
        self.prefill_tps = 0.0
        self.itl_ms: dict[int, float] = {}
        self._virtual = 0.0
        self._at = 0.0

    def enter(self, now: float) -> float:
        """One more request is active. Returns its mark."""
        self._advance(now)
        self.active += 1
        return self._virtual

    def leave(self, mark: float, now: float) -> float:
        """A request is done. Returns its share in seconds."""
        self._advance(now)
        self.active -= 1
        return self._virtual - mark

    def token(self, gap_s: float) -> None:
        """A token came `gap_s` seconds after the one before it in the same stream."""
        bucket = next((size for size in _BUCKETS if size >= self.active), _BUCKETS[-1])
        self.itl_ms[bucket] = _mix(self.itl_ms.get(bucket), gap_s * 1000)

    def prefill(self, tokens: int, seconds: float) -> None:
        """`tokens` prompt tokens were evaluated in `seconds`."""
        if tokens > 0 and seconds > 0:
            self.prefill_tps = _mix(self.prefill_tps or None, tokens / seconds)

    def _advance(self, now: float) -> None:
        if self.active:
            self._virtual += max(0.0, now - self._at) / self.active
        self._at = now


def _mix(average: float | None, value: float) -> float:
    return value if average is None else average + _WEIGHT * (value - average)
