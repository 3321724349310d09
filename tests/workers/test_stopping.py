"""Stop strings: the outcome never depends on how the text was cut, nothing is lost, nothing leaks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engines.stopping import StopMatcher

small = st.text(alphabet="abc", max_size=24)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3)


def by_definition(text: str, stop_strings: list[str]) -> tuple[str, str | None]:
    """What may be shown of `text`: read it letter by letter until some stop string is complete."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stop_strings if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(pieces=st.lists(small, max_size=8), stop_strings=stops)
def test_the_shown_text_is_exact_however_the_text_is_cut(pieces, stop_strings):
    matcher = StopMatcher(stop_strings)
    shown = "".join([*map(matcher.push, pieces), matcher.flush()])
    assert (shown, matcher.hit) == by_definition("".join(pieces), stop_strings)


@given(text=small, stop_strings=stops)
def test_only_a_possible_beginning_is_held_back(text, stop_strings):
    matcher = StopMatcher(stop_strings)
    shown = "".join(matcher.push(letter) for letter in text)
    if matcher.hit is None:
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stop_strings)
        assert not any(stop.startswith(text[n:]) for n in range(len(shown)) for stop in stop_strings)


def test_nothing_is_shown_after_a_hit():
    matcher = StopMatcher(["END"])
    assert matcher.push("one EN") == "one "
    assert matcher.push("D two") == ""
    assert matcher.hit == "END"
    assert matcher.push("three") == ""
    assert matcher.flush() == ""


@pytest.mark.parametrize("stop_strings", [[], [""]])
def test_without_stop_strings_text_passes(stop_strings):
    matcher = StopMatcher(stop_strings)
    assert matcher.push("text") == "text"
    assert matcher.flush() == ""
