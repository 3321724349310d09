"""Ids of characters made of several tokens, stop strings, and what llama.cpp is asked."""

import pytest

from shared.errors import EngineError
from shared.wire import Grammar, Resume, Sampling
from workers.engines.base import Delta, EngineRequest
from workers.engines.llamacpp import check_causal
from workers.engines.llamacpp_http import Alternative, Chunk, Probability, ServerTimings
from workers.engines.llamacpp_reader import Answer
from workers.engines.llamacpp_server import completion_body, default_threads
from workers.gguf import Vocabulary

# 0-255 bytes, then two pieces of an emoji, and the end-of-text token.
VOCABULARY = Vocabulary([bytes([n]) for n in range(256)] + [b"\xf0\x9f", b"\x98\x80", b"<end>"], (258,), eos=258)


class Fixed:
    """A tokenizer that always gives the same ids."""

    def __init__(self, *ids):
        self.ids = list(ids)

    async def encode(self, text, *, special):
        return self.ids


def request(**more):
    return EngineRequest(**{"id": "r", "prompt": (1,), "max_tokens": 50, **more})


def answer(*own, **more):
    return Answer(request(**more), VOCABULARY, Fixed(*own))


def chunk(text, ids, total, **more):
    return Chunk(content=text, tokens=list(ids), tokens_predicted=total, **more)


async def test_the_tokenizers_own_ids_are_preferred():
    one = answer(256, 257)
    assert await one.take(chunk("a", [97], 1)) == Delta("a", (97,))
    assert await one.take(chunk("😀", [257], 3)) == Delta("😀", (256, 257))
    assert (one.made, one.ids) == (3, [97, 256, 257])


async def test_else_the_vocabulary_is_searched_for_that_many():
    one = answer(256, 257)
    assert await one.take(chunk("😀", [0x80], 4)) == Delta("😀", (0xF0, 0x9F, 0x98, 0x80))


async def test_else_the_count_stays_right():
    one = answer(1)
    assert await one.take(chunk("\ufffd", [0x41], 3)) == Delta("\ufffd", (0x41,))
    assert one.made == 3


async def test_a_length_cut_inside_a_character_counts_what_it_hides():
    one = answer()
    await one.take(chunk("a", [97], 1))
    assert await one.take(Chunk(stop=True, stop_type="limit", tokens_predicted=3)) is None
    assert (one.made, one.ids, one.reason) == (3, [97], "length")


async def test_a_stop_string_ends_with_the_token_that_completes_it():
    one = answer(stop=("END",))
    shown = [await one.take(chunk(text, [97], n + 1)) for n, text in enumerate(["x E", "N", "D y"])]
    assert [delta.text for delta in shown] == ["x ", "", ""]
    assert (one.reason, one.made, one.flush()) == ("stop", 3, None)


async def test_a_stop_id_hides_its_own_text_only():
    one = answer(stop=("END",), stop_ids=(98,))
    await one.take(chunk("E", [97], 1))
    assert await one.take(chunk("N", [98], 2)) == Delta("", (98,))
    assert (one.reason, one.flush()) == ("stop", Delta("E"))


async def test_logprobs_are_cut_to_what_was_asked():
    top = [Alternative(n, "x", [120], -float(n)) for n in range(3)]
    given = [Probability(97, "a", [97], -0.5, top)]
    assert (await answer().take(chunk("a", [97], 1, completion_probabilities=given))).logprobs is None
    for wanted in (0, 2):
        delta = await answer(top_logprobs=wanted).take(chunk("a", [97], 1, completion_probabilities=given))
        assert (delta.logprobs[0].bytes, len(delta.logprobs[0].top)) == (b"a", wanted)


@pytest.mark.parametrize(
    ("ids", "delivered", "more", "text", "reason"),
    [
        ((97, 98), 1, {}, "b", None),
        ((97, 98), 2, {}, None, None),
        ((97, 98), 0, {"max_tokens": 2}, "ab", "length"),
        ((97, 258), 1, {}, None, "stop"),
        ((97, 98, 99), 1, {"stop": ("bc",)}, None, "stop"),
        ((97, 98), 1, {"stop": ("bc",)}, None, None),
    ],
)
def test_a_resume_takes_in_what_was_there(ids, delivered, more, text, reason):
    one = answer(resume=Resume(ids=ids, delivered_chars=delivered), **more)
    begun = one.begin()
    assert (begun.text if begun else None, one.reason, one.made) == (text, reason, len(ids))


async def test_the_last_counters_are_kept():
    one = answer()
    await one.take(chunk("a", [97], 1, timings=ServerTimings(draft_n=5, draft_n_accepted=2)))
    await one.take(Chunk(stop=True, stop_type="eos", tokens_predicted=1))
    assert (one.timings.draft_n, one.timings.draft_n_accepted, one.reason) == (5, 2, "stop")


def test_every_sampling_field_is_sent_neutral_or_set():
    body = completion_body(request(), (1, 2), slot=3, reuse=True, n_predict=7)
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"], body["repeat_penalty"]) == (1, 1, 0, 0, 1)
    assert (body["id_slot"], body["cache_prompt"], body["n_predict"], body["prompt"]) == (3, True, 7, (1, 2))
    assert body["repeat_last_n"] == 0
    assert "stop" not in body
    assert "n_probs" not in body
    assert "json_schema" not in body
    seeded = completion_body(request(seed=2**40 - 1, top_logprobs=0), (1,), slot=0, reuse=False, n_predict=1)
    assert 0 <= seeded["seed"] < 0xFFFFFFFF
    assert seeded["n_probs"] == 1
    penalised = request(sampling=Sampling(presence_penalty=1.0), grammar=Grammar(kind="json_object"))
    body = completion_body(penalised, (1,), slot=0, reuse=False, n_predict=1)
    assert body["repeat_last_n"] == 51
    assert body["json_schema"] == {"type": "object"}


def test_the_self_test_tells_a_causal_kernel_from_another():
    check_causal({1: -0.1, 2: -3.0}, {1: -0.2, 2: -2.9})
    with pytest.raises(EngineError, match="self-test"):
        check_causal({1: -0.1, 2: -3.0}, {1: -3.0, 2: -0.1})
    with pytest.raises(EngineError, match="self-test"):
        check_causal({1: -0.1}, {2: -0.1})


def test_there_is_always_a_thread():
    assert default_threads() >= 1
