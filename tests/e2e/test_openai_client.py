"""What OpenAI's own library sees: streams and whole answers, usage, models, headers, and every error as its own class."""

import asyncio
import json

import httpx
import openai
import pytest

from tests.e2e.stack import LLAMA

pytestmark = pytest.mark.timeout(240)

COLOURS = [{"role": "user", "content": "Name three colours."}]
SCRIPTS = "👩‍👩‍👧‍👦 家族 é ñ 你好 🇩🇪 👍🏽 नमस्ते\n"
"""A joined family, CJK, combining marks, a flag of two code points, a skin tone, a conjunct: most take several tokens."""
EXACT = "smol-none"


def streamed(client, **asked):
    """The pieces of text and all chunks of a streamed chat or completion."""
    endpoint = client.chat.completions if "messages" in asked else client.completions
    chunks = list(endpoint.create(stream=True, **asked))
    texts = [
        (choice.delta.content or "") if "messages" in asked else choice.text
        for chunk in chunks
        for choice in chunk.choices
    ]
    return texts, chunks


@pytest.mark.parametrize("model", ["smol-none", "smol-ngram", "smol-draft"])
def test_a_stream_says_what_the_whole_answer_says(client, model):
    asked = {"model": model, "messages": COLOURS, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**asked)
    texts, chunks = streamed(client, **asked, stream_options={"include_usage": True})
    *body, last = chunks
    assert "".join(texts) == whole.choices[0].message.content
    assert whole.object == "chat.completion"
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert (chunks[0].model, chunks[0].object) == (model, "chat.completion.chunk")
    assert [chunk.choices[0].delta.role for chunk in body] == ["assistant"] + [None] * (len(body) - 1)
    finished = [chunk.choices[0].finish_reason for chunk in body]
    assert finished == [None] * (len(body) - 1) + [whole.choices[0].finish_reason]
    assert (last.choices, last.usage) == ([], whole.usage)
    assert all(chunk.usage is None for chunk in body)
    usage = whole.usage
    assert usage.completion_tokens == 24
    assert usage.total_tokens == usage.prompt_tokens + 24


def test_a_stream_has_no_usage_unless_asked(client):
    _, chunks = streamed(client, model=EXACT, messages=COLOURS, max_tokens=3)
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)
    _, chunks = streamed(client, model=EXACT, prompt="One, two,", max_tokens=3)
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=EXACT, messages=COLOURS, stream_options={"include_usage": True})
    assert refused.value.param == "stream_options"


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_one_token_is_one_token(client, limit):
    asked = {"model": EXACT, "messages": COLOURS, limit: 1}
    assert client.chat.completions.create(**asked).usage.completion_tokens == 1
    _, chunks = streamed(client, **asked, stream_options={"include_usage": True})
    assert chunks[-1].usage.completion_tokens == 1
    assert chunks[-2].choices[0].finish_reason == "length"


@pytest.mark.parametrize("model", ["smol-none", "smol-ngram", "smol-draft"])
def test_characters_of_several_tokens_arrive_whole(client, model):
    asked = {"model": model, "prompt": SCRIPTS + SCRIPTS[:3], "temperature": 0, "max_tokens": 28}
    whole = client.completions.create(**asked)
    texts, chunks = streamed(client, **asked, stream_options={"include_usage": True})
    assert "".join(texts) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage
    for text in texts:
        assert "\ufffd" not in text
        text.encode()  # a lone surrogate would not
    assert len(texts) < whole.usage.completion_tokens, "nothing was made of several tokens: the test shows nothing"
    assert len(whole.choices[0].text.encode()) > len(whole.choices[0].text) * 1.5


def test_a_cut_inside_a_character_leaves_it_out(client):
    asked = {"model": EXACT, "prompt": SCRIPTS + SCRIPTS[:3], "temperature": 0}
    full = client.completions.create(**asked, max_tokens=12).choices[0].text
    texts = set()
    for length in range(4, 10):
        answer = client.completions.create(**asked, max_tokens=length)
        assert answer.usage.completion_tokens == length
        assert full.startswith(answer.choices[0].text)
        texts.add(answer.choices[0].text)
    assert len(texts) < 6, "no cut fell inside a character: the test shows nothing"


def test_two_choices_share_one_prompt(client):
    asked = {"model": EXACT, "messages": COLOURS, "max_tokens": 6, "n": 2, "seed": 5, "logit_bias": {"2": -100}}
    whole = client.chat.completions.create(**asked)
    alone = client.chat.completions.create(**{**asked, "n": 1})
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].message.content != whole.choices[1].message.content
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (alone.usage.prompt_tokens, 12)
    _, chunks = streamed(client, **asked, stream_options={"include_usage": True})
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (alone.usage.prompt_tokens, 12)
    for index in range(2):
        mine = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert [choice.finish_reason for choice in mine if choice.finish_reason] == ["length"]


def test_a_repeated_prompt_is_cached_and_counted_whole(llama, client_of):
    client = client_of(llama)
    asked = {"model": LLAMA, "messages": [{"role": "user", "content": "A long story: " + "and then " * 60}]}
    first = client.chat.completions.create(**asked, max_tokens=2).usage
    second = client.chat.completions.create(**asked, max_tokens=2).usage
    assert first.prompt_tokens == second.prompt_tokens > 60
    assert second.prompt_tokens_details.cached_tokens > 60
    assert second.prompt_tokens_details.cached_tokens <= second.prompt_tokens


def test_completions_take_text_and_token_ids(client):
    ids = [504, 253, 900, 900, 900]
    by_ids = client.completions.create(model=EXACT, prompt=ids, max_tokens=4, temperature=0)
    assert by_ids.usage.prompt_tokens == len(ids)
    assert by_ids.object == "text_completion"
    wrapped = client.completions.create(model=EXACT, prompt=[ids], max_tokens=4, temperature=0)
    assert wrapped.choices == by_ids.choices
    texts, _ = streamed(client, model=EXACT, prompt=ids, max_tokens=4, temperature=0)
    assert "".join(texts) == by_ids.choices[0].text
    by_text = client.completions.create(model=EXACT, prompt="One, two, three,", max_tokens=4, temperature=0)
    assert by_text.choices[0].text.strip().startswith("four")
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=EXACT, prompt=[10**6], max_tokens=4)
    assert refused.value.param == "prompt"


def test_parts_and_spellings_mean_the_same(client):
    plain = {"model": EXACT, "temperature": 0, "max_tokens": 8}
    system = {"role": "system", "content": "Answer with one word."}
    one = client.chat.completions.create(**plain, messages=[system, *COLOURS])
    two = client.chat.completions.create(
        **plain,
        messages=[
            {**system, "role": "developer"},
            {"role": "user", "content": [{"type": "text", "text": COLOURS[0]["content"]}]},
        ],
        user="someone",
        metadata={"a": "b"},
        store=False,
        stop=None,
        logprobs=None,
        tools=[],
        extra_body={"priority": "batch", "session_id": "s", "not_a_field": 1},
    )
    assert two.choices == one.choices
    assert two.usage == one.usage


def test_models_are_listed_and_found(client, client_of, trio):
    listed = client.models.list().data
    assert {model.id for model in listed} == {LLAMA, "smol-none", "smol-ngram", "smol-draft"}
    assert all(model.object == "model" and model.created > 0 for model in listed)
    assert client.models.retrieve("smol-ngram") in listed
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt-9")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        client_of(trio, api_key="ef-wrong").models.list()


def test_headers_name_the_request_and_the_version(client):
    for version in ("none", "ngram", "draft"):
        asked = {"model": f"smol-{version}", "messages": COLOURS, "max_tokens": 1}
        for stream in (False, True):
            raw = client.chat.completions.with_raw_response.create(
                **asked, stream=stream, extra_headers={"x-request-id": f"mine-{version}"}
            )
            assert raw.headers["x-request-id"] == f"mine-{version}"
            assert raw.headers["x-evenflow-version"] == version
            raw.http_response.close()
    made = client.chat.completions.with_raw_response.create(**asked, extra_headers={"x-request-id": "no good <id>"})
    assert made.headers["x-request-id"] not in {"", "no good <id>"}
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="x", messages=COLOURS, extra_headers={"x-request-id": "mine"})
    assert missing.value.request_id == "mine"


@pytest.mark.parametrize(
    ("change", "kind", "code", "param", "words"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found", "model", ["gpt-9"]),
        (
            {"messages": [{"role": "user", "content": "word " * 3000}]},
            openai.BadRequestError, "context_length_exceeded", "messages", ["2048", "3031"],
        ),
        (
            {"messages": [{"role": "user", "content": "word " * 2000}], "max_tokens": 200},
            openai.BadRequestError, "context_length_exceeded", "messages", ["2048", "2231", "2031", "200"],
        ),
        ({"max_tokens": 5000}, openai.BadRequestError, "invalid_value", "max_tokens", ["5000", "2048"]),
        ({"max_tokens": 0}, openai.BadRequestError, "invalid_value", "max_tokens", []),
        ({"messages": []}, openai.BadRequestError, "invalid_value", "messages", []),
        ({"temperature": "hot"}, openai.BadRequestError, "invalid_type", "temperature", ["number", "string"]),
        ({"logit_bias": {"9999999": 1}}, openai.BadRequestError, "invalid_value", "logit_bias", ["49152"]),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
            openai.BadRequestError, "unsupported_value", "tools", [],
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_of_their_class(client, stream, change, kind, code, param, words):  # noqa: PLR0917 -- pytest names its arguments
    with pytest.raises(kind) as refused:
        client.chat.completions.create(**{"model": EXACT, "messages": COLOURS, "stream": stream, **change})
    assert (refused.value.code, refused.value.param) == (code, param)
    assert all(word in refused.value.message for word in words), refused.value.message


def test_a_key_that_is_wrong_is_an_authentication_error(trio, client_of):
    for key in ("ef-wrong", trio.key[:-1] + ("a" if trio.key[-1] != "a" else "b"), "sk-" + "x" * 40):
        with pytest.raises(openai.AuthenticationError) as refused:
            client_of(trio, api_key=key).chat.completions.create(model=EXACT, messages=COLOURS)
        assert (refused.value.code, refused.value.type) == ("invalid_api_key", "authentication_error")


def test_a_bad_request_is_sent_once_by_a_client_that_retries(trio, client_of):
    sent = []
    with httpx.Client(event_hooks={"request": [sent.append]}) as http:
        client = client_of(trio, max_retries=3, http_client=http)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model=EXACT, messages=COLOURS, temperature=9)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gpt-9", messages=COLOURS)
    assert len(sent) == 2


async def test_the_async_client_streams_side_by_side(llama):
    async with openai.AsyncOpenAI(base_url=f"{llama.url}/v1", api_key=llama.key, max_retries=0) as client:

        async def ask(number):
            stream = await client.chat.completions.create(
                model=LLAMA, messages=[{"role": "user", "content": f"Count from {number}."}], max_tokens=8, stream=True,
                stream_options={"include_usage": True}, logit_bias={"2": -100},
            )  # fmt: skip
            return [chunk async for chunk in stream]

        answers = await asyncio.gather(*(ask(number) for number in range(4)))
        assert [chunks[-1].usage.completion_tokens for chunks in answers] == [8] * 4
        assert len({chunk.id for chunks in answers for chunk in chunks}) == 4
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("gpt-9")


def test_a_stream_that_is_left_costs_the_next_one_nothing(llama, client_of):
    client = client_of(llama)
    with client.chat.completions.create(model=LLAMA, messages=COLOURS, stream=True, max_tokens=400) as stream:
        next(iter(stream))
    assert client.chat.completions.create(model=LLAMA, messages=COLOURS, max_tokens=1).usage.completion_tokens == 1
    seen = llama.settled()
    assert seen["evenflow_streams_held"] == seen["evenflow_requests_in_flight"] == 0


def test_the_bytes_of_a_stream(trio):
    body = {"model": EXACT, "messages": COLOURS, "max_tokens": 4, "stream": True}
    with httpx.stream("POST", f"{trio.url}/v1/chat/completions", headers=trio.headers, json=body) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        text = answer.read().decode()
    *events, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    for event in events:
        assert event.startswith(("data: {", ": "))
        if event.startswith("data: "):
            assert json.loads(event.removeprefix("data: "))["choices"][0]["index"] == 0
