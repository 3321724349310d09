"""Chat requests: what is understood, and what is refused by the name of the field."""

import json

import msgspec
import pytest

from gateway.api import decode_chat, lacks, needs
from shared.errors import InvalidRequestError
from shared.settings import LimitSettings
from shared.wire import Grammar, Sampling

LIMITS = LimitSettings()
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def ask(**fields):
    body = {"model": "m", "messages": HELLO, **fields}
    return decode_chat(json.dumps({k: v for k, v in body.items() if v is not ...}).encode(), LIMITS)


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def test_a_plain_request_is_neutral_in_everything_it_does_not_say():
    got = ask()
    assert (got.kind, got.model, got.input) == ("chat", "m", HELLO)
    assert (got.sampling, got.stop, got.max_tokens, got.n, got.seed) == (Sampling(), (), None, 1, None)
    assert (got.logprobs, got.grammar, got.tools, got.stream, got.include_usage) == (None, None, None, False, False)
    assert (got.service_class, got.session_id, got.user) == ("interactive", None, None)
    assert got.input_param == "messages"


def test_every_field_does_what_it_says():
    got = ask(
        temperature=0, top_p=0.9, top_k=40, min_p=0.05, presence_penalty=-2, frequency_penalty=2, repetition_penalty=1.1,
        logit_bias={"50256": -100, "7": 1.5}, stop=["\n\n", "END"], max_tokens=7, n=2, seed=-1, logprobs=True,
        top_logprobs=5, stream=True, stream_options={"include_usage": True}, user="u", priority="batch",
        session_id="s",
    )  # fmt: skip
    assert got.sampling == Sampling(
        temperature=0.0, top_p=0.9, top_k=40, min_p=0.05, presence_penalty=-2.0, frequency_penalty=2.0,
        repetition_penalty=1.1, logit_bias={50256: -100.0, 7: 1.5},
    )  # fmt: skip
    assert (got.stop, got.max_tokens, got.n, got.seed, got.logprobs) == (("\n\n", "END"), 7, 2, -1, 5)
    assert (got.stream, got.include_usage, got.user) == (True, True, "u")
    assert (got.service_class, got.session_id) == ("batch", "s")


def test_a_nucleus_of_nothing_is_the_likeliest_token():
    assert ask(top_p=0, top_k=50).sampling == Sampling(top_p=1.0, top_k=1)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 9}, "max_tokens", 9),
        ({"max_completion_tokens": 9}, "max_tokens", 9),
        ({"logprobs": True}, "logprobs", 0),
        ({"logprobs": False}, "logprobs", None),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": []}, "stop", ()),
        ({"top_k": -1}, "sampling", Sampling()),
        ({"logit_bias": {}}, "sampling", Sampling()),
        ({"tools": []}, "tools", None),
        ({"tools": [], "tool_choice": "auto"}, "tools", None),
        ({"tools": [TOOL]}, "tools", [TOOL]),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tools", [TOOL]),
        ({"tools": [TOOL], "tool_choice": "none"}, "tools", None),
        ({"response_format": {"type": "text"}}, "grammar", None),
        ({"response_format": {"type": "json_object"}}, "grammar", Grammar(kind="json_object")),
        ({"response_format": schema_format({})}, "grammar", Grammar(kind="json_schema", schema={})),
        (
            {"response_format": {"type": "json_object", "schema": {"type": "array"}}},
            "grammar",
            Grammar(kind="json_schema", schema={"type": "array"}),
        ),
        ({"stream": True, "stream_options": {"include_usage": False}}, "include_usage", False),
        ({"stream": True, "stream_options": {"include_obfuscation": False}}, "include_usage", False),
    ],
)
def test_spellings(fields, name, value):
    assert getattr(ask(**fields), name) == value


def test_null_counts_as_absent_for_every_field():
    names = [name for name in msgspec.structs.asdict(ask()) if name not in ("kind", "input", "model")]
    from gateway.api.bodies import ChatBody

    nulls = {name: None for name in ChatBody.__struct_fields__ if name not in ("model", "messages")}
    assert len(nulls) > len(names)
    assert ask(**nulls) == ask()


@pytest.mark.parametrize(
    "fields",
    [
        {"service_tier": "flex", "store": True, "metadata": {"a": "b"}, "parallel_tool_calls": False},
        {"prediction": {"type": "content", "content": "x"}, "prompt_cache_key": "k", "safety_identifier": "s"},
        {"reasoning_effort": "none", "verbosity": "medium", "modalities": ["text"], "functions": []},
        {"no_such_field": {"deep": [1, {"er": None}]}, "guided": 1e9},
    ],
)
def test_hints_and_unknown_fields_change_nothing(fields):
    assert ask(**fields) == ask()


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ({"role": "developer", "content": "d"}, {"role": "system", "content": "d"}),
        ({"role": "user", "content": ""}, {"role": "user", "content": ""}),
        ({"role": "user", "content": "c", "name": "Al"}, {"role": "user", "content": "c", "name": "Al"}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb"},
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "audio": None},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
        ),
        ({"role": "assistant", "content": "x", "tool_calls": []}, {"role": "assistant", "content": "x"}),
        ({"role": "assistant", "content": None, "refusal": "no"}, {"role": "assistant", "content": "no"}),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
        ),
        (
            {"role": "tool", "tool_call_id": "call_1", "content": "42"},
            {"role": "tool", "tool_call_id": "call_1", "content": "42"},
        ),
    ],
)
def test_messages_come_out_plain(message, plain):
    assert ask(messages=[message, *HELLO]).input == [plain, *HELLO]


def one(**message):
    return {"messages": [*HELLO, {"role": "user", "content": "x", **message}]}


BAD = [
    ({"model": ...}, "missing_required_parameter", "model"),
    ({"model": None}, "missing_required_parameter", "model"),
    ({"model": ""}, "invalid_value", "model"),
    ({"model": "m" * 257}, "invalid_value", "model"),
    ({"model": 3}, "invalid_type", "model"),
    ({"messages": ...}, "missing_required_parameter", "messages"),
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": "hello"}, "invalid_type", "messages"),
    ({"messages": ["hello"]}, "invalid_type", "messages[0]"),
    ({"messages": HELLO * 2049}, "invalid_value", "messages"),
    (one(role=None), "missing_required_parameter", "messages[1].role"),
    (one(role="wizard"), "invalid_value", "messages[1].role"),
    (one(role="function"), "invalid_value", "messages[1].role"),
    (one(role=7), "invalid_type", "messages[1].role"),
    (one(content=None), "missing_required_parameter", "messages[1].content"),
    (one(content=5), "invalid_type", "messages[1].content"),
    (one(content=[]), "invalid_value", "messages[1].content"),
    (one(content=["x"]), "invalid_type", "messages[1].content[0]"),
    (one(content=[{"text": "x"}]), "missing_required_parameter", "messages[1].content[0].type"),
    (one(content=[{"type": "text"}]), "missing_required_parameter", "messages[1].content[0].text"),
    (one(content=[{"type": "text", "text": 1}]), "invalid_type", "messages[1].content[0].text"),
    (one(content=[{"type": "text", "text": "see"}, IMAGE]), "unsupported_value", "messages[1].content[1]"),
    (one(content=[{"type": "refusal", "refusal": "x"}]), "unsupported_value", "messages[1].content[0]"),
    (one(content=[{"type": "hologram"}]), "unsupported_value", "messages[1].content[0]"),
    (one(name=""), "invalid_value", "messages[1].name"),
    (one(tool_calls=[CALL]), "invalid_value", "messages[1].tool_calls"),
    (one(role="tool"), "missing_required_parameter", "messages[1].tool_call_id"),
    (one(role="assistant", function_call={"name": "f"}), "unsupported_parameter", "messages[1].function_call"),
    (one(audio={"id": "a"}), "unsupported_parameter", "messages[1].audio"),
    (one(role="system", function_call={}), "unsupported_parameter", "messages[1].function_call"),
    (one(role="assistant", audio={"id": "a"}), "unsupported_parameter", "messages[1].audio"),
    (one(role="assistant", tool_calls=[{}]), "missing_required_parameter", "messages[1].tool_calls[0].id"),
    (
        one(role="assistant", tool_calls=[{**CALL, "function": {"name": "f"}}]),
        "missing_required_parameter",
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        one(role="assistant", tool_calls=[{**CALL, "type": "custom"}]),
        "unsupported_value",
        "messages[1].tool_calls[0].type",
    ),
    ({"temperature": "0.7"}, "invalid_type", "temperature"),
    ({"temperature": True}, "invalid_type", "temperature"),
    ({"temperature": -0.1}, "invalid_value", "temperature"),
    ({"temperature": 2.1}, "invalid_value", "temperature"),
    ({"top_p": 1.1}, "invalid_value", "top_p"),
    ({"top_k": -2}, "invalid_value", "top_k"),
    ({"top_k": 1.5}, "invalid_type", "top_k"),
    ({"min_p": -1}, "invalid_value", "min_p"),
    ({"presence_penalty": 3}, "invalid_value", "presence_penalty"),
    ({"frequency_penalty": -3}, "invalid_value", "frequency_penalty"),
    ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
    ({"max_tokens": -1}, "invalid_value", "max_tokens"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    ({"max_tokens": 2.5}, "invalid_type", "max_tokens"),
    ({"max_tokens": True}, "invalid_type", "max_tokens"),
    ({"max_tokens": 10**30}, "invalid_value", "max_tokens"),
    ({"max_completion_tokens": 0}, "invalid_value", "max_completion_tokens"),
    ({"n": 0}, "invalid_value", "n"),
    ({"n": 9}, "invalid_value", "n"),
    ({"seed": 2**63}, "invalid_value", "seed"),
    ({"seed": 1.0}, "invalid_type", "seed"),
    ({"stop": ""}, "invalid_value", "stop"),
    ({"stop": ["a", ""]}, "invalid_value", "stop[1]"),
    ({"stop": ["a"] * 17}, "invalid_value", "stop"),
    ({"stop": "é" * 129}, "invalid_value", "stop"),
    ({"stop": ["a", None]}, "invalid_type", "stop[1]"),
    ({"stop": 4}, "invalid_type", "stop"),
    ({"logit_bias": {"a": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"1.5": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"²": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"1": 100.5}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"1": "x"}}, "invalid_type", "logit_bias"),
    ({"logit_bias": [1]}, "invalid_type", "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "invalid_value", "logit_bias"),
    ({"logprobs": 5}, "invalid_type", "logprobs"),
    ({"top_logprobs": 5}, "invalid_value", "top_logprobs"),
    ({"logprobs": False, "top_logprobs": 5}, "invalid_value", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "invalid_value", "top_logprobs"),
    ({"stream": "true"}, "invalid_type", "stream"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "invalid_type", "stream_options.include_usage"),
    ({"priority": "urgent"}, "invalid_value", "priority"),
    ({"priority": 1}, "invalid_type", "priority"),
    ({"user": "u" * 513}, "invalid_value", "user"),
    ({"session_id": "u" * 513}, "invalid_value", "session_id"),
    ({"metadata": "x"}, "invalid_type", "metadata"),
    ({"store": "x"}, "invalid_type", "store"),
    ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
    ({"response_format": {"type": "xml"}}, "unsupported_value", "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "missing_required_parameter",
        "response_format.json_schema.schema",
    ),
    ({"response_format": schema_format([])}, "invalid_type", "response_format.json_schema.schema"),
    ({"response_format": schema_format({"maximum": 2**65})}, "invalid_value", "response_format.json_schema.schema"),
    ({"tools": [{}]}, "missing_required_parameter", "tools[0].type"),
    ({"tools": [TOOL, {"type": "custom"}]}, "unsupported_value", "tools[1].type"),
    ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "missing_required_parameter", "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_value", "tools[0].function.name"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]},
        "invalid_type",
        "tools[0].function.parameters",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [2**64]}}}]},
        "invalid_value",
        "tools[0].function.parameters",
    ),
    ({"tools": [TOOL] * 129}, "invalid_value", "tools"),
    ({"tools": [TOOL], "tool_choice": "required"}, "unsupported_value", "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look_up"}}},
        "unsupported_value",
        "tool_choice",
    ),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "maybe"}, "invalid_value", "tool_choice"),
    ({"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
    ({"function_call": "auto"}, "unsupported_parameter", "function_call"),
    ({"modalities": ["text", "audio"]}, "unsupported_parameter", "modalities"),
    ({"audio": {"voice": "x"}}, "unsupported_parameter", "audio"),
    ({"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
    ({"reasoning_effort": "high"}, "unsupported_parameter", "reasoning_effort"),
    ({"verbosity": "low"}, "unsupported_parameter", "verbosity"),
    ({"moderation": {"model": "x"}}, "unsupported_parameter", "moderation"),
]


@pytest.mark.parametrize(("fields", "code", "param"), BAD, ids=lambda value: str(value)[:60])
def test_what_is_wrong_is_refused_by_name(fields, code, param):
    with pytest.raises(InvalidRequestError) as caught:
        ask(**fields)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, code, param)
    assert f"'{param}'" in error.message
    assert len(error.message) < 300


def test_needs_names_what_a_model_version_must_announce():
    assert needs(ask()) == frozenset()
    assert needs(ask(tools=[TOOL], logprobs=True)) == {"tools", "logprobs"}
    assert needs(ask(response_format={"type": "json_object"})) == {"json_object"}
    assert needs(ask(response_format=schema_format({}))) == {"json_schema"}
    assert needs(ask(messages=[{"role": "assistant", "tool_calls": [CALL]}, *HELLO])) == {"tools"}
    assert needs(ask(messages=[{"role": "tool", "tool_call_id": "c", "content": ""}])) == {"tools"}


def test_a_missing_feature_is_refused_by_the_field_that_asked_for_it():
    error = lacks(ask(tools=[TOOL]), frozenset({"tools"}))
    assert (error.status, error.code, error.param) == (400, "unsupported_value", "tools")
    history = ask(messages=[{"role": "tool", "tool_call_id": "c", "content": ""}])
    assert lacks(history, frozenset({"tools"})).param == "messages"
    assert lacks(ask(), frozenset({"json_schema", "logprobs"})).param == "response_format"
