"""Streams, byte for byte and through the official client's own types."""

import json
import math

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from gateway.encode import LOWEST, Stream, error_event, merge
from shared.errors import UpstreamError
from shared.wire import TokenLogprob, TopLogprob, Usage

USAGE = Usage(prompt=10, cached=4, completion=7, accepted=3, proposed=5)
USAGE_JSON = {
    "prompt_tokens": 10,
    "completion_tokens": 7,
    "total_tokens": 17,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 2},
}


def stream(kind="chat", include_usage=False):
    return Stream(kind, "0198", "tiny", 1_700_000_000, include_usage)


def data(event):
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event[6:])


def logprob(token="é", value=-0.5):
    top = TopLogprob(id=2, token="x", bytes=b"x", logprob=-1.5)
    return TokenLogprob(id=1, token=token, bytes=token.encode(), logprob=value, top=(top,))


def test_chat_events_to_the_byte():
    out = stream()
    head = (
        b'data: {"id":"chatcmpl-0198","object":"chat.completion.chunk","created":1700000000,"model":"tiny",'
        b'"system_fingerprint":null,"choices":[{"index":0,'
    )
    assert out.role(0) == (
        head + b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert out.text(0, 'h"\n') == head + b'"delta":{"content":"h\\"\\n"},"logprobs":null,"finish_reason":null}]}\n\n'
    assert out.finish(0, "stop") == head + b'"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n'
    assert out.usage(USAGE) == b""
    assert out.done() == b"data: [DONE]\n\n"


def test_completion_events_to_the_byte():
    out = stream("ids")
    head = (
        b'data: {"id":"cmpl-0198","object":"text_completion","created":1700000000,"model":"tiny",'
        b'"system_fingerprint":null,"choices":[{"index":1,'
    )
    assert out.role(1) == b""
    assert out.text(1, "hi") == head + b'"text":"hi","logprobs":null,"finish_reason":null}]}\n\n'
    assert out.finish(1, "length") == head + b'"text":"","logprobs":null,"finish_reason":"length"}]}\n\n'


def test_usage_comes_exactly_once_in_a_chunk_without_choices_and_is_null_elsewhere():
    out = stream(include_usage=True)
    for event in (out.role(0), out.text(0, "a"), out.text(0, "b", [logprob()]), out.finish(0, "stop")):
        assert data(event)["usage"] is None
    last = data(out.usage(USAGE))
    assert (last["choices"], last["usage"]) == ([], USAGE_JSON)
    assert "evenflow_resumed" not in last
    assert out.usage(USAGE) == b""


def test_a_resumed_stream_says_so_in_its_usage_chunk():
    assert data(stream(include_usage=True).usage(USAGE, resumed=True))["evenflow_resumed"] is True
    assert stream().usage(USAGE, resumed=True) == b""


def test_one_role_chunk_per_choice_even_when_another_worker_starts_over():
    out = stream()
    assert out.role(0)
    assert out.role(1)
    assert out.role(0) == out.role(1) == b""


def test_id_created_and_model_are_constant():
    out = stream(include_usage=True)
    events = [out.role(0), out.text(1, "x"), out.text(0, "y", [logprob()]), out.finish(1, "stop"), out.usage(USAGE)]
    heads = {tuple(data(event)[key] for key in ("id", "object", "created", "model")) for event in events}
    assert heads == {("chatcmpl-0198", "chat.completion.chunk", 1_700_000_000, "tiny")}


def test_choices_keep_their_index():
    out = stream()
    assert [data(out.text(i, str(i)))["choices"][0]["index"] for i in (0, 3, 0, 1)] == [0, 3, 0, 1]


def test_chat_logprobs():
    choice = data(stream().text(0, "é", [logprob()]))["choices"][0]
    assert choice["delta"] == {"content": "é"}
    assert choice["logprobs"] == {
        "content": [
            {
                "token": "é",
                "logprob": -0.5,
                "bytes": [0xC3, 0xA9],
                "top_logprobs": [{"token": "x", "logprob": -1.5, "bytes": [120]}],
            }
        ],
        "refusal": None,
    }


def test_completion_logprobs_count_offsets_over_the_whole_choice():
    out = stream("text")
    first = data(out.text(0, "éa", [logprob("é"), logprob("a")]))["choices"][0]["logprobs"]
    assert first == {
        "tokens": ["é", "a"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"x": -1.5}, {"x": -1.5}],
        "text_offset": [0, 1],
    }
    assert data(out.text(0, "bc", [logprob("bc")]))["choices"][0]["logprobs"]["text_offset"] == [2]
    assert data(out.text(1, "z", [logprob("z")]))["choices"][0]["logprobs"]["text_offset"] == [0]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-math.inf, LOWEST), (math.nan, LOWEST), (-1e6, LOWEST), (0.0, 0.0), (1e-9, 0.0), (math.inf, 0.0)],
)
def test_a_logprob_is_always_a_number(value, shown):
    content = data(stream().text(0, "a", [logprob("a", value)]))["choices"][0]["logprobs"]["content"]
    assert content[0]["logprob"] == shown


def test_a_cancelled_stream_has_no_finish_chunk():
    with pytest.raises(ValueError, match="cancelled"):
        stream().finish(0, "cancelled")


@pytest.mark.parametrize("text", ["queued 3", "two\nlines", "data: x\r\n\r\ndata: [DONE]", "\u2028", ""])
def test_a_comment_is_one_line(text):
    comment = stream().comment(text)
    assert comment.startswith(b": ")
    assert comment.endswith(b"\n\n")
    assert comment.count(b"\n") == 2
    assert b"\r" not in comment


def test_an_error_says_whether_to_try_again_and_nothing_of_our_insides():
    out = stream()
    assert data(out.error(UpstreamError("The worker failed."), retryable=True)) == {
        "error": {
            "message": "The worker failed.",
            "type": "server_error",
            "param": None,
            "code": "worker_failed",
            "retryable": True,
        }
    }
    assert out.error(UpstreamError("m"), retryable=False) == error_event(UpstreamError("m"), retryable=False)
    assert b"secret" not in out.error(KeyError("secret"), retryable=False)


@given(st.lists(st.text(max_size=20), max_size=6), st.sampled_from(["chat", "text"]), st.booleans())
def test_any_text_comes_through_whole(pieces, kind, with_logprobs):
    out = stream(kind, include_usage=True)
    logprobs = [logprob()] if with_logprobs else None
    choices = [data(out.text(0, piece, logprobs))["choices"][0] for piece in pieces]
    assert [c["delta"]["content"] if kind == "chat" else c["text"] for c in choices] == pieces


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_model_and_request_id_are_quoted(model, request_id):
    chunk = data(Stream("chat", request_id, model, 1, include_usage=False).text(0, "x"))
    assert (chunk["model"], chunk["id"]) == (model, "chatcmpl-" + request_id)


def test_n_choices_bill_the_prompt_once():
    first = Usage(prompt=10, cached=0, completion=5, accepted=1, proposed=2, device_seconds=0.5)
    second = Usage(prompt=10, cached=9, completion=6, accepted=2, proposed=2, device_seconds=0.25)
    assert merge([first, second]) == Usage(
        prompt=10, cached=0, completion=11, accepted=3, proposed=4, device_seconds=0.75
    )
    assert merge([second]) == second
    assert merge([]) == Usage()


def whole_stream(kind="chat"):
    out = stream(kind, include_usage=True)
    return [
        out.role(0), out.comment("queued"), out.text(0, "Hé"), out.text(0, "llo", [logprob("llo")]),
        out.finish(0, "stop"), out.usage(USAGE), out.done(),
    ]  # fmt: skip


def test_chat_chunks_are_exactly_the_official_type():
    for event in whole_stream():
        if event.startswith(b"data: {"):
            raw = data(event)
            chunk = ChatCompletionChunk.model_validate(raw)
            assert chunk.model_dump(exclude_unset=True) == raw
            assert not chunk.model_extra


def client(events):
    def answer(_request):
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b"".join(events))

    transport = httpx.MockTransport(answer)
    return openai.OpenAI(
        api_key="k", base_url="http://x/v1", max_retries=0, http_client=httpx.Client(transport=transport)
    )


def test_the_official_client_reads_a_chat_stream():
    with client(whole_stream()) as api:
        chunks = list(api.chat.completions.create(model="m", messages=[], stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Héllo"
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None, None, None, "stop"]
    assert [c.usage.to_dict() for c in chunks if c.usage] == [USAGE_JSON]


def test_the_official_client_reads_a_completion_stream():
    with client(whole_stream("text")) as api:
        chunks = list(api.completions.create(model="m", prompt="x", stream=True))
    assert all(isinstance(chunk, Completion) for chunk in chunks)
    assert not any(chunk.model_extra for chunk in chunks)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == "Héllo"


def test_the_official_client_raises_an_error_in_mid_stream():
    out = stream()
    events = [out.role(0), out.text(0, "Hé"), out.error(UpstreamError("The worker failed."), retryable=True)]
    seen = []
    with client(events) as api, pytest.raises(openai.APIError, match=r"The worker failed\.") as caught:
        seen.extend(api.chat.completions.create(model="m", messages=[], stream=True))
    assert caught.value.code == "worker_failed"
