"""Completion requests: prompts as text or token ids, and what is refused."""

import json

import pytest

from gateway.api import decode_completion, needs
from shared.errors import InvalidRequestError
from shared.settings import LimitSettings

LIMITS = LimitSettings()


def ask(**fields):
    body = {"model": "m", "prompt": "Once", **fields}
    return decode_completion(json.dumps({k: v for k, v in body.items() if v is not ...}).encode(), LIMITS)


@pytest.mark.parametrize(
    ("prompt", "kind", "plain"),
    [
        ("Once", "text", "Once"),
        (["Once"], "text", "Once"),
        ([1, 2, 3], "ids", [1, 2, 3]),
        ([[1, 2, 3]], "ids", [1, 2, 3]),
        ([0, 2**31 - 1], "ids", [0, 2**31 - 1]),
    ],
)
def test_a_prompt_is_text_or_token_ids(prompt, kind, plain):
    got = ask(prompt=prompt)
    assert (got.kind, got.input, got.input_param) == (kind, plain, "prompt")


def test_logprobs_are_a_count():
    assert ask().logprobs is None
    assert ask(logprobs=0).logprobs == 0
    assert ask(logprobs=5).logprobs == 5
    assert needs(ask(logprobs=0)) == {"logprobs"}


@pytest.mark.parametrize(
    "fields",
    [
        {"echo": False, "suffix": "", "best_of": 1},
        {"echo": None, "suffix": None, "best_of": None, "logprobs": None, "n": None, "max_tokens": None},
        {"messages": [], "tools": 5, "metadata": 5},
    ],
)
def test_neutral_and_unknown_fields_change_nothing(fields):
    assert ask(**fields) == ask()


def test_shared_fields_are_checked_by_the_same_code():
    got = ask(max_tokens=16, temperature=0.5, stop="x", n=2, best_of=2, stream=True, priority="batch")
    assert (got.max_tokens, got.sampling.temperature, got.stop, got.n) == (16, 0.5, ("x",), 2)
    assert (got.stream, got.service_class) == (True, "batch")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": ...}, "missing_required_parameter", "model"),
        ({"prompt": ...}, "missing_required_parameter", "prompt"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [""]}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt"),
        ({"prompt": ["a", "b"]}, "unsupported_value", "prompt"),
        ({"prompt": [[1], [2]]}, "unsupported_value", "prompt"),
        ({"prompt": 5}, "invalid_type", "prompt"),
        ({"prompt": [1, "b"]}, "invalid_type", "prompt[1]"),
        ({"prompt": [1, [2]]}, "invalid_type", "prompt[1]"),
        ({"prompt": [1, True]}, "invalid_type", "prompt[1]"),
        ({"prompt": [1, 2.5]}, "invalid_type", "prompt[1]"),
        ({"prompt": [1, -1]}, "invalid_value", "prompt[1]"),
        ({"prompt": [2**31, 1]}, "invalid_value", "prompt[0]"),
        ({"prompt": [[1, 2**70]]}, "invalid_value", "prompt[1]"),
        ({"logprobs": True}, "invalid_type", "logprobs"),
        ({"logprobs": 21}, "invalid_value", "logprobs"),
        ({"logprobs": -1}, "invalid_value", "logprobs"),
        ({"echo": True}, "unsupported_parameter", "echo"),
        ({"suffix": "end"}, "unsupported_parameter", "suffix"),
        ({"best_of": 2}, "unsupported_value", "best_of"),
        ({"best_of": 1, "n": 2}, "unsupported_value", "best_of"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"stream_options": {}}, "invalid_value", "stream_options"),
    ],
)
def test_what_is_wrong_is_refused_by_name(fields, code, param):
    with pytest.raises(InvalidRequestError) as caught:
        ask(**fields)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert f"'{param}'" in caught.value.message
