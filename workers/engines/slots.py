"""Which of a server's slots a request gets, so that prefixes are found again and never across tenants. No I/O."""

from collections.abc import Sequence


class Slot:
    """One sequence of the engine's cache: whose it was last, and which tokens it holds."""

    __slots__ = ("busy", "index", "lease", "tenant", "tokens", "used")

    def __init__(self, index: int) -> None:
        self.index = index
        self.busy = False
        self.tenant: str | None = None
        self.tokens: tuple[int, ...] = ()
        self.used = 0
        self.lease = 0


class Lease:
    """One request's hold on a slot. `reuse`: what the slot holds belongs to the same tenant and may be continued."""

    __slots__ = ("_number", "reuse", "slot")

    def __init__(self, slot: Slot, *, reuse: bool) -> None:
        self.slot = slot
        self.reuse = reuse
        slot.lease += 1
        self._number = slot.lease

    def release(self) -> None:
        """The engine is done with the slot. Idempotent."""
        if self._number == self.slot.lease:
            self.slot.busy = False

    def remember(self, tokens: tuple[int, ...]) -> None:
        """What the slot holds now, unless somebody else has it already."""
        if self._number == self.slot.lease:
            self.slot.tokens = tokens


class PrefixSlots:
    """The slots of one server.

    A request goes where its own tenant left the longest common prefix, if that is at least half of the prompt; else to
    an unused slot; else to the one used longest ago. A slot that changes hands is cleared: `reuse` is false.
    """

    def __init__(self, count: int) -> None:
        self._slots = [Slot(index) for index in range(count)]
        self._clock = 0

    def take(self, tenant: str, prompt: Sequence[int], *, share: bool = True) -> Lease | None:
        """A slot, or None if all are busy. With `share` false nothing is ever continued."""
        free = [slot for slot in self._slots if not slot.busy]
        if not free:
            return None
        oldest = min(free, key=lambda slot: slot.used)
        own = [(common(slot.tokens, prompt), slot) for slot in free if share and slot.tenant == tenant]
        shared, best = max(own, key=lambda pair: (pair[0], pair[1].used), default=(0, oldest))
        slot = best if 2 * shared >= len(prompt) else oldest
        self._clock += 1
        reuse = share and slot.tenant == tenant
        slot.busy, slot.tenant, slot.used, slot.tokens = True, tenant, self._clock, ()
        return Lease(slot, reuse=reuse)

    @property
    def held(self) -> int:
        """Tokens in the slots that are not in use, which is what a next request may find again."""
        return sum(len(slot.tokens) for slot in self._slots if not slot.busy)


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix."""
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size
    return next((n for n in range(size) if left[n] != right[n]), size)
