"""How long prompts and outputs will probably be."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.guesses import COLD, PromptSizes, Usual


def test_an_unknown_kind_takes_the_cold_guess_and_one_output_is_enough_to_know_better() -> None:
    usual = Usual()
    assert usual.tokens("t") == COLD
    usual.saw("t", 40)
    assert 40 <= usual.tokens("t") <= 48
    assert usual.tokens("other") == COLD


def test_of_a_hundred_outputs_the_guess_covers_ninety_five() -> None:
    usual = Usual()
    for n in range(2_000):
        usual.saw("t", 1_000 if n % 50 == 0 else 100)
    assert 100 <= usual.tokens("t") <= 120, "one in fifty is long: it is not what is usual"
    for n in range(2_000):
        usual.saw("t", 1_000 if n % 10 == 0 else 100)
    assert 1_000 <= usual.tokens("t") <= 1_200, "one in ten is"


def test_habits_change() -> None:
    usual = Usual()
    for _ in range(500):
        usual.saw("t", 4_000)
    for _ in range(150):
        usual.saw("t", 10)
    assert usual.tokens("t") < 50


@given(tokens=st.integers(0, 2**24))
def test_a_guess_is_a_fifth_too_much_at_most(tokens: int) -> None:
    usual = Usual()
    usual.saw("t", tokens)
    guess = usual.tokens("t")
    if 1 <= tokens <= 2**20:
        assert tokens <= guess <= tokens * 1.2 + 1


def test_only_so_many_kinds_are_remembered() -> None:
    usual = Usual(most=3)
    for kind in "abcd":
        usual.saw(kind, 10)
    usual.saw("b", 10)
    usual.saw("e", 10)
    assert len(usual) == 3
    assert [usual.tokens(kind) == COLD for kind in "abcde"] == [True, False, True, False, False]


def test_prompts_are_learnt_for_each_model() -> None:
    sizes = PromptSizes()
    assert sizes.likely("m", 400, 0) == 100
    for _ in range(100):
        sizes.saw("m", 400, 8, 208)
    assert 195 <= sizes.likely("m", 400, 8) <= 210
    assert sizes.likely("n", 400, 8) == 108
    assert sizes.likely("m", 0, 0) == 1
    sizes.saw("m", 0, 1, 5)


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 2_000), st.integers(0, 10**7)), max_size=50))
def test_no_count_makes_nonsense_of_a_guess(counts: list[tuple[int, int, int]]) -> None:
    sizes = PromptSizes()
    for size, messages, tokens in counts:
        sizes.saw("m", size, messages, tokens)
    assert 1 <= sizes.likely("m", 1_000, 8) <= 4_008
