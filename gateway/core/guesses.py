"""What a request will probably take, before anybody has counted: its prompt by its size, its output by its kind's past.

Pure. A guess only decides how much a rate window holds for a request; what it takes is counted where it runs.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable
from itertools import accumulate
from typing import Final

COLD: Final = 256
"""Tokens that an output takes as long as nothing is known of its kind."""
QUANTILE: Final = 0.95
_FORGET: Final = 0.97
"""A count's weight shrinks by this with every later one: the last hundred or so decide."""
_STEPS_PER_OCTAVE: Final = 4
_BINS: Final = 4 * 20 + 1  # up to 2^20 tokens
_TOKENS_PER_BYTE: Final = 0.25
_LEARNT: Final = 0.1


class Usual:
    """How long outputs of each kind are: a decaying histogram of log-sized bins for each, of the `most` last used."""

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._kinds: OrderedDict[Hashable, list[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kinds)

    def saw(self, kind: Hashable, tokens: int) -> None:
        """One output of that kind took so many tokens."""
        bins = self._kinds.get(kind)
        if bins is None:
            bins = self._kinds[kind] = [0.0] * _BINS
            if len(self._kinds) > self._most:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(kind)
        for at, weight in enumerate(bins):
            if weight:
                bins[at] = weight * _FORGET
        bins[_bin(tokens)] += 1.0

    def tokens(self, kind: Hashable) -> int:
        """The 95th percentile of that kind, rounded up to its bin: at most a fifth too much. 256 if unknown."""
        bins = self._kinds.get(kind)
        if bins is None:
            return COLD
        wanted = QUANTILE * sum(bins)
        for at, weight in enumerate(bins):
            wanted -= weight
            if wanted <= 0:
                return _TOPS[at]
        return _TOPS[-1]


class PromptSizes:
    """Tokens of a prompt by the bytes of its text, learnt for each model from those that were counted."""

    def __init__(self) -> None:
        self._ratios: dict[Hashable, float] = {}

    def likely(self, model: Hashable, size: int, template: int) -> int:
        """Tokens of a prompt of `size` bytes, to which its template adds so many tokens."""
        ratio = self._ratios.get(model, _TOKENS_PER_BYTE)
        return max(1, round(ratio * size) + template)

    def saw(self, model: Hashable, size: int, template: int, tokens: int) -> None:
        """A prompt of that size had so many tokens."""
        if size <= 0:
            return
        ratio = min(4.0, max(0, tokens - template) / size)
        known = self._ratios.get(model, ratio)
        self._ratios[model] = known + _LEARNT * (ratio - known)


def _bin(tokens: int) -> int:
    """The first bin whose top is at least so many tokens."""
    return min(bisect_left(_TOPS, tokens), _BINS - 1)


_TOPS: Final = list(
    accumulate(range(_BINS), lambda top, at: max(top + 1, round(2 ** (at / _STEPS_PER_OCTAVE))), initial=0)
)[1:]
