"""Fields that shape the answer do what they say, as seen through OpenAI's own library."""

import json
import math

import jsonschema
import openai
import pytest

pytestmark = pytest.mark.timeout(240)

EXACT = "smol-none"
COLOURS = [{"role": "user", "content": "Name three colours."}]
INK = "900"
"""The token id of the text `ink`."""
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "mood": {"enum": ["happy", "sad"]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}


def say(client, **asked):
    """One choice of a whole answer and the usage."""
    answer = client.chat.completions.create(**{"model": EXACT, "messages": COLOURS, "max_tokens": 16, **asked})
    return answer.choices[0], answer.usage


def text(client, **asked):
    return say(client, **asked)[0].message.content


def stream(client, **asked):
    """Text, finish reason and usage of a streamed answer."""
    asked = {"model": EXACT, "messages": COLOURS, "max_tokens": 16, **asked}
    *body, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    said = "".join(chunk.choices[0].delta.content or "" for chunk in body)
    return said, body[-1].choices[0].finish_reason, last.usage


@pytest.mark.parametrize("model", ["smol-none", "smol-ngram", "smol-draft"])
def test_stop_strings_cut_just_before_and_lose_nothing(client, model):
    asked = {"model": model, "temperature": 0, "max_tokens": 14}
    full = text(client, **asked)
    starts = [k for k in (5, 23) if full.find(full[k : k + 7]) == k and k + 7 <= len(full)]
    assert len(starts) == 2, full
    for start in starts:  # seven characters: more than any one of these tokens
        stop = full[start : start + 7]
        choice, usage = say(client, **asked, stop=stop)
        assert (choice.message.content, choice.finish_reason) == (full[:start], "stop")
        assert stream(client, **asked, stop=[stop, "never said"]) == (full[:start], "stop", usage)
        assert 0 < usage.completion_tokens <= 14
    near = full[-3:] + "\x01"  # held back until the end, then due
    assert stream(client, **asked, stop=[near])[:2] == (full, "length")


def test_of_several_stop_strings_the_first_to_be_complete_wins(client):
    full = text(client, temperature=0)
    early, late = full[8:12], full[14:20]
    assert full.find(early) == 8
    assert text(client, temperature=0, stop=[late, early]) == full[:8]


def test_a_seed_repeats_an_answer(client, trio):
    def seeded(seed):
        trio.settled()  # alone on the worker: how many run beside it changes how its sums are rounded
        choice, usage = say(client, temperature=1.2, seed=seed)
        assert usage.prompt_tokens_details.cached_tokens == 0
        return choice.message.content

    once = seeded(7)
    assert seeded(7) == once
    assert stream(client, temperature=1.2, seed=7)[0] == once
    assert len({once, seeded(8), seeded(9)}) > 1
    assert len({text(client, temperature=1.2) for _ in range(4)}) > 1  # no seed: none is made up once and kept


def test_what_leaves_one_token_to_choose_from_is_greedy(client):
    greedy = text(client, temperature=0, max_tokens=8)
    assert text(client, temperature=0, max_tokens=8) == greedy
    hot = {"temperature": 2.0, "seed": 1, "max_tokens": 8}
    for narrow in (
        {"top_p": 0},
        {"top_p": 1e-6},
        {"extra_body": {"top_k": 1}},
        {"extra_body": {"min_p": 1.0}},
    ):
        assert text(client, **hot, **narrow) == greedy, narrow
    assert text(client, **hot) != greedy
    assert text(client, **hot, extra_body={"top_k": -1, "min_p": 0}) == text(client, **hot)


LIST = "The list: red, blue, red, blue, red, blue, red, blue, red,"


@pytest.mark.parametrize(
    ("prompt", "again", "penalty"),
    [
        (LIST, "blue", {"frequency_penalty": 2.0}),
        (LIST, "blue", {"extra_body": {"repetition_penalty": 1.5}}),
        ("la " * 11 + "la", "1", {"presence_penalty": 2.0}),
    ],
)
def test_penalties_end_a_repetition(client, prompt, again, penalty):
    asked = {"model": EXACT, "prompt": prompt, "max_tokens": 14, "temperature": 0}
    assert client.completions.create(**asked).choices[0].text.count(again) >= 3
    assert client.completions.create(**asked, **penalty).choices[0].text.count(again) <= 1


def test_a_bias_forces_and_forbids_a_token(client):
    assert text(client, max_tokens=5, temperature=0, logit_bias={INK: 100}) == "ink" * 5
    assert text(client, max_tokens=5, temperature=1, logit_bias={INK: 100}) == "ink" * 5
    assert "ink" not in text(client, max_tokens=5, temperature=0, logit_bias={INK: -100, "901": 100})
    assert "ink" not in text(client, max_tokens=5, temperature=0)  # and it is forgotten afterwards


def test_logprobs_of_a_chat(client):
    choice, usage = say(client, temperature=0, logprobs=True, top_logprobs=3)
    tokens = choice.logprobs.content
    assert len(tokens) == usage.completion_tokens == 16
    assert "".join(token.token for token in tokens) == choice.message.content
    for token in tokens:
        assert bytes(token.bytes).decode() == token.token
        best = [other.logprob for other in token.top_logprobs]
        assert best == sorted(best, reverse=True)
        assert (token.top_logprobs[0].token, best[0]) == (token.token, token.logprob)  # greedy
        assert len({other.token for other in token.top_logprobs}) == len(best) == 3
        assert 0 < sum(map(math.exp, best)) <= 1 + 1e-4
    assert choice.message.content == text(client, temperature=0)
    wide = say(client, max_tokens=2, temperature=0, logprobs=True, top_logprobs=20)[0].logprobs.content
    assert [len(token.top_logprobs) for token in wide] == [20, 20]
    assert all(abs(a.logprob - b.logprob) < 1e-3 for a, b in zip(wide, tokens, strict=False))
    bare = say(client, max_tokens=2, logprobs=True)[0].logprobs.content
    assert [token.top_logprobs for token in bare] == [[], []]
    assert say(client, max_tokens=2)[0].logprobs is None


def test_logprobs_of_a_streamed_chat_are_the_same(client):
    asked = {"model": EXACT, "messages": COLOURS, "max_tokens": 8, "temperature": 0, "logprobs": True}
    whole = client.chat.completions.create(**asked, top_logprobs=2).choices[0].logprobs.content
    parts = []
    for chunk in client.chat.completions.create(**asked, top_logprobs=2, stream=True):
        choice = chunk.choices[0]
        if choice.logprobs:
            parts += choice.logprobs.content
            assert "".join(token.token for token in choice.logprobs.content) == choice.delta.content
    assert parts == whole


def test_logprobs_of_a_completion(client):
    asked = {"model": EXACT, "prompt": "One, two, three,", "max_tokens": 6, "temperature": 0}
    choice = client.completions.create(**asked, logprobs=2).choices[0]
    given = choice.logprobs
    assert len(given.tokens) == len(given.token_logprobs) == len(given.top_logprobs) == len(given.text_offset) == 6
    for token, logprob, top, offset in zip(
        given.tokens, given.token_logprobs, given.top_logprobs, given.text_offset, strict=True
    ):
        assert choice.text[offset : offset + len(token)] == token
        assert top[token] == logprob <= 0
        assert len(top) == 2
    streamed = [chunk.choices[0] for chunk in client.completions.create(**asked, logprobs=2, stream=True)]
    offsets = [offset for one in streamed if one.logprobs for offset in one.logprobs.text_offset]
    assert offsets == given.text_offset


@pytest.mark.parametrize("seed", [1, 2])
def test_a_schema_binds_at_any_temperature(client, seed):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    asked = {"max_tokens": 160, "temperature": 1.0, "seed": seed, "response_format": form}
    choice, _ = say(client, **asked, messages=[{"role": "user", "content": "Describe a person."}])
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), PERSON)
    streamed, reason, _ = stream(client, **asked)
    assert reason == "stop"
    jsonschema.validate(json.loads(streamed), PERSON)


def test_json_object_gives_an_object(client):
    asked = {"messages": [{"role": "user", "content": 'Say {"ok": true} as JSON.'}], "temperature": 0}
    choice, _ = say(client, **asked, max_tokens=60, response_format={"type": "json_object"})
    assert choice.finish_reason == "stop"
    assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "schema", [{"type": "object", "properties": {"n": {"type": "string", "pattern": "("}}}, {"type": "wrong"}]
)
def test_a_schema_that_is_broken_is_refused(client, schema, stream):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=EXACT, messages=COLOURS, response_format=form, stream=stream)
    assert refused.value.param == "response_format"
