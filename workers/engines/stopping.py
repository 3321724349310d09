"""Stop strings, one way for all engines: hold back what may become one, lose nothing, never show a part of one."""

from collections.abc import Sequence


class StopMatcher:
    """Feed it the answer piece by piece; it gives back what may be shown.

    The outcome does not depend on where the pieces are cut: the stop string that is complete first wins, and of those
    complete at the same character the longest. Text before it is always shown, it and what follows never.
    """

    __slots__ = ("_firsts", "_held", "_stops", "hit")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._firsts = frozenset(stop[0] for stop in self._stops)
        self._held = ""
        self.hit: str | None = None

    def push(self, piece: str) -> str:
        """What may be shown now. After `hit` is set, nothing more ever is."""
        if not self._stops:
            return piece
        if self.hit is not None:
            return ""
        text = self._held + piece
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best):
                best = (start + len(stop), start)
        if best is not None:
            end, start = best
            self.hit = text[start:end]
            self._held = ""
            return text[:start]
        keep = self._possible(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once it is certain that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _possible(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max(map(len, self._stops)) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if text[start] in self._firsts:
                end = text[start:]
                if any(stop.startswith(end) for stop in self._stops):
                    return len(end)
        return 0
