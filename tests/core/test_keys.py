import hashlib
import hmac
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.keys import ALPHABET, KEY_CHARS, display, fingerprint, new_key, well_formed

randoms = st.binary(min_size=32, max_size=32)


def number(text: str) -> int:
    value = 0
    for digit in text:
        value = value * 62 + ALPHABET.index(digit)
    return value


@given(randoms)
def test_a_key_is_its_random_bytes_and_their_checksum(random):
    key = new_key(random)
    assert key[:3] == "ef-"
    assert len(key) == KEY_CHARS == 52
    assert number(key[3:46]).to_bytes(32, "big") == random
    assert number(key[46:]) == zlib.crc32(key[:46].encode())
    assert well_formed(key)


def test_the_format_never_changes():
    # Keys in people's hands must stay valid: these were made once and are pinned.
    assert new_key(bytes(32)) == "ef-" + "0" * 43 + "3DfhlD"
    assert new_key(b"\xff" * 32) == "ef-yhjskwdA6OZ1AL1YmHWZWm8LLG7HjnuCA2j5rOw8Xp104uwgV"


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_key_needs_all_its_randomness(length):
    with pytest.raises(ValueError, match=f"not {length}"):
        new_key(bytes(length))


@given(randoms, st.integers(0, KEY_CHARS - 1), st.sampled_from(ALPHABET + "-_ é\n"))
def test_one_wrong_character_is_seen(random, position, other):
    key = new_key(random)
    mistyped = key[:position] + other + key[position + 1 :]
    assert well_formed(mistyped) == (mistyped == key)


@given(st.text())
def test_any_text_is_judged_without_error(text):
    assert not well_formed(text)


@pytest.mark.parametrize(
    "wrong", ["", "ef-", "ef-" + "0" * 49, "\ud800" * 52, "ef-" + "٣" * 49, "sk-" + "0" * 43 + "3DfhlD"]
)
def test_malformed(wrong):
    assert not well_formed(wrong)


def test_trailing_newline_is_not_part_of_a_key():
    assert not well_formed(new_key(bytes(32)) + "\n")
    assert not well_formed(new_key(bytes(32))[:-1] + "\n")


@given(randoms, st.binary(min_size=32, max_size=80))
def test_fingerprint_is_rfc_2104_hmac_sha256(random, pepper):
    key = new_key(random)
    block = pepper if len(pepper) <= 64 else hashlib.sha256(pepper).digest()
    block = block.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in block) + key.encode()).digest()
    assert fingerprint(pepper, key) == hashlib.sha256(bytes(b ^ 0x5C for b in block) + inner).digest()


def test_fingerprint_depends_on_the_pepper():
    key = new_key(bytes(32))
    assert not hmac.compare_digest(fingerprint(b"a" * 32, key), fingerprint(b"b" * 32, key))


@given(randoms)
def test_display_shows_nine_characters(random):
    key = new_key(random)
    assert display(key) == key[:9]
