"""Whole answers and the model list, through the official client's own types."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion

from gateway.encode import Choice, ModelCard, model_card, model_list, whole
from shared.wire import TokenLogprob, Usage

TOKEN = TokenLogprob(id=1, token="hi", bytes=b"hi", logprob=-0.25)
CHOICES = [Choice(0, "hi", (TOKEN,), "stop"), Choice(1, "ho", None, "length")]
USAGE = Usage(prompt=3, cached=1, completion=4, accepted=2, proposed=5)


def test_a_chat_answer_is_exactly_the_official_type():
    raw = json.loads(whole("chat", "0198", "tiny", 1_700_000_000, CHOICES, USAGE))
    answer = ChatCompletion.model_validate(raw)
    assert answer.model_dump(exclude_unset=True) == raw
    assert not answer.model_extra
    assert (raw["id"], raw["object"], raw["created"], raw["model"]) == (
        "chatcmpl-0198",
        "chat.completion",
        1_700_000_000,
        "tiny",
    )
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in raw["choices"]] == [
        (0, "hi", "stop"),
        (1, "ho", "length"),
    ]
    assert raw["choices"][0]["logprobs"]["content"][0]["bytes"] == [104, 105]
    assert raw["choices"][1]["logprobs"] is None
    assert raw["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 3},
    }


@pytest.mark.parametrize("kind", ["text", "ids"])
def test_a_completion_answer_is_exactly_the_official_type(kind):
    raw = json.loads(whole(kind, "0198", "tiny", 1, CHOICES, USAGE))
    answer = Completion.model_validate(raw)
    assert answer.model_dump(exclude_unset=True) == raw
    assert not answer.model_extra
    assert (raw["id"], raw["object"]) == ("cmpl-0198", "text_completion")
    assert raw["choices"][0]["logprobs"] == {
        "tokens": ["hi"],
        "token_logprobs": [-0.25],
        "top_logprobs": [{}],
        "text_offset": [0],
    }


@given(st.text(), st.sampled_from(["chat", "text"]))
def test_any_text_comes_through_whole(text, kind):
    raw = json.loads(whole(kind, "r", "m", 1, [Choice(0, text, None, "stop")], Usage()))
    choice = raw["choices"][0]
    assert (choice["message"]["content"] if kind == "chat" else choice["text"]) == text


def test_a_cancelled_choice_is_never_sent():
    with pytest.raises(ValueError, match="cancelled"):
        whole("chat", "r", "m", 1, [Choice(0, "", None, "cancelled")], Usage())


def test_models():
    card = ModelCard(id="tiny", created=1_700_000_000)
    raw = json.loads(model_card(card))
    assert raw == {"id": "tiny", "object": "model", "created": 1_700_000_000, "owned_by": "evenflow"}
    assert Model.model_validate(raw).model_dump(exclude_unset=True) == raw
    assert json.loads(model_list([card])) == {"object": "list", "data": [raw]}
    assert json.loads(model_list([])) == {"object": "list", "data": []}
