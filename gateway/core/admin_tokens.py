"""The format of an admin token: a tenant's key under another prefix, so that neither is ever taken for the other. Pure.

efa- 43 characters of base62: 256 random bits   6 of base62: the checksum that the key `ef-` + those 43 would have
"""

from typing import Final, Literal, get_args

from gateway.core import keys

PREFIX: Final = "efa-"
DISPLAY_CHARS: Final = len(PREFIX) + 6

Scope = Literal["read", "tenants", "keys", "quotas", "usage", "audit", "fleet"]
"""What a token may do: `read` everything but the audit log, or read and change what the scope names."""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)


def new_token(random: bytes) -> str:
    """The token made of 32 random bytes. Raises ValueError if there are more or fewer."""
    return PREFIX + keys.new_key(random).removeprefix(keys.PREFIX)


def well_formed(text: str) -> bool:
    """Whether this could be a token. Says nothing about whether it is valid."""
    return text.startswith(PREFIX) and keys.well_formed(keys.PREFIX + text.removeprefix(PREFIX))


def display(token: str) -> str:
    """The first characters, to tell tokens apart in lists."""
    return token[:DISPLAY_CHARS]
