"""The format of an API key, and its fingerprint. Pure: randomness comes in as an argument.

    ef- 43 characters of base62: 256 random bits   6 of base62: CRC-32 of all before them
    └┬┘ └──────────────────┬─────────────────────┘ └─┬──┘
    prefix               body                    checksum

The checksum lets a scanner of leaked secrets tell a key from noise, and the gateway refuse a mistyped one, without
asking the store. The store keeps only HMAC-SHA256(pepper, key): 256 random bits need no slow hash, and without the
pepper a stolen store says nothing about any key.
"""

import hmac
import re
import zlib
from typing import Final

SCOPES: Final = ("inference", "usage")
"""All that a key may be allowed: to ask models, and to see what its tenant used."""
PREFIX = "ef-"
RANDOM_BYTES = 32
BODY_CHARS = 43
CHECKSUM_CHARS = 6
KEY_CHARS = len(PREFIX) + BODY_CHARS + CHECKSUM_CHARS
DISPLAY_CHARS = len(PREFIX) + 6

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = {digit: value for value, digit in enumerate(ALPHABET)}
_SHAPE = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{BODY_CHARS + CHECKSUM_CHARS}}}", re.ASCII)


def new_key(random: bytes) -> str:
    """The key made of 32 random bytes.

    Raises:
        ValueError: If there are more or fewer.
    """
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"a key is made of {RANDOM_BYTES} random bytes, not {len(random)}")
    body = PREFIX + _base62(int.from_bytes(random, "big"), BODY_CHARS)
    return body + _base62(zlib.crc32(body.encode("ascii")), CHECKSUM_CHARS)


def well_formed(text: str) -> bool:
    """Whether this could be a key: prefix, length, alphabet and checksum. Says nothing about whether it is valid."""
    if len(text) != KEY_CHARS or _SHAPE.fullmatch(text) is None:
        return False
    checksum = 0
    for digit in text[-CHECKSUM_CHARS:]:
        checksum = checksum * 62 + _DIGITS[digit]
    return checksum == zlib.crc32(text[:-CHECKSUM_CHARS].encode("ascii"))


def fingerprint(pepper: bytes, key: str) -> bytes:
    """HMAC-SHA256 of a key, 32 bytes: all that is ever stored of it."""
    return hmac.digest(pepper, key.encode(), "sha256")


def display(key: str) -> str:
    """The first characters, to tell keys apart in lists: 220 of the 256 bits stay unknown."""
    return key[:DISPLAY_CHARS]


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
