"""What a key may do, compiled once and shared by all keys that may do the same. Pure."""

from collections.abc import Iterable

import msgspec

from gateway.core.keys import SCOPES
from gateway.core.networks import Networks, compiled


class Rules(msgspec.Struct, frozen=True, gc=False):
    """`models` and `networks` are None where all are allowed; `families` are how the names of allowed models begin."""

    scopes: frozenset[str] = frozenset(SCOPES)
    models: frozenset[str] | None = None
    families: tuple[str, ...] = ()
    networks: Networks | None = None

    def allows(self, model: str) -> bool:
        """Whether this model may be used, and known of."""
        return self.models is None or model in self.models or model.startswith(self.families)


EVERYTHING = Rules()


def compile_rules(scopes: Iterable[str], models: Iterable[str] | None, networks: Iterable[str] | None) -> Rules:
    """The rules of a key from its row. Raises ValueError for a network that is none."""
    names = None if models is None else tuple(models)
    return Rules(
        frozenset(scopes),
        None if names is None else frozenset(name for name in names if not name.endswith("*")),
        () if names is None else tuple(name[:-1] for name in names if name.endswith("*")),
        None if networks is None else compiled(networks),
    )
