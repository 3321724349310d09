"""How many streams each tenant holds. Pure."""


class Concurrency:
    """Counters with a bound; whoever takes gives back exactly once."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def take(self, tenant: str, streams: int, limit: int) -> bool:
        """Hold `streams` more for `tenant` unless that passes `limit`."""
        held = self._held.get(tenant, 0)
        if held + streams > limit:
            return False
        self._held[tenant] = held + streams
        return True

    def give(self, tenant: str, streams: int) -> None:
        """Give back what was taken."""
        left = self._held[tenant] - streams
        if left > 0:
            self._held[tenant] = left
        else:
            del self._held[tenant]

    def held(self, tenant: str | None = None) -> int:
        """What one tenant, or all of them, hold now."""
        return sum(self._held.values()) if tenant is None else self._held.get(tenant, 0)
