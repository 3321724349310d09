"""Request bodies as bytes: what is not JSON, too deep, or text that cannot be. Nothing escapes as another error."""

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.api import decode_chat, decode_completion
from gateway.api.bodies import ChatBody, TextBody
from gateway.api.parse import _deeper_than
from shared.errors import InvalidRequestError
from shared.settings import LimitSettings
from shared.wire import Job, encode

LIMITS = LimitSettings()
HEAD = b'{"model":"m","messages":[{"role":"user","content":"x"}]'


def fault(body):
    with pytest.raises(InvalidRequestError) as caught:
        decode_chat(body, LIMITS)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n\t ",
        b"{",
        HEAD,
        HEAD + b"} {}",
        HEAD + b",}",
        b"\xef\xbb\xbf" + HEAD + b"}",
        HEAD.decode().encode("utf-16"),
        HEAD + b',"temperature":NaN}',
        HEAD + b',"temperature":Infinity}',
        HEAD + b',"temperature":-Infinity}',
        HEAD + b',"temperature":01}',
        HEAD + b',"user":"\xff"}',
        HEAD + b',"unknown":"\xff"}',
        HEAD + b',"\xff":1}',
        HEAD + b',"user":"\xed\xa0\x80"}',  # a surrogate in UTF-8
        HEAD + b',"user":"\xc0\x80"}',  # U+0000, overlong
        HEAD + b',"user":"\\ud800"}',
        HEAD + b',"user":"\\ud800 and more text"}',
        HEAD + b',"user":"\\udc00 and more text"}',
        HEAD + b',"user":"a\x00b"}',
        HEAD + b',"user":"a\nb"}',
        HEAD + b",'user':'a'}",
        HEAD + b"/* comment */}",
    ],
)
def test_what_is_not_json_is_invalid_json(body):
    error = fault(body)
    assert (error.status, error.code, error.param) == (400, "invalid_json", None)


def test_common_slips_are_told_apart():
    assert "the body is empty" in fault(b"").message
    assert "byte order mark" in fault(b"\xef\xbb\xbf{}").message
    assert "invalid UTF-8 (byte 9)" in fault(b'{"user":"\xff"}').message
    assert "trailing characters" in fault(HEAD + b"} {}").message


@pytest.mark.parametrize("body", [b"[]", b"null", b"3", b'"model"', b"true"])
def test_the_top_level_is_an_object(body):
    error = fault(body)
    assert (error.code, error.param) == ("invalid_type", None)
    assert "the body" in error.message


@pytest.mark.parametrize("number", [b"1e999", b"-1e400", b"1" + b"0" * 400])
def test_numbers_beyond_a_double_are_refused_by_name(number):
    error = fault(HEAD + b',"temperature":' + number + b"}")
    assert (error.code, error.param) == ("invalid_value", "temperature")
    assert len(error.message) < 200


@pytest.mark.parametrize("digits", [30, 4000, 5000, 100_000])
def test_integers_of_any_length_are_refused_by_name(digits):
    error = fault(HEAD + b',"max_tokens":1' + b"0" * digits + b"}")
    assert (error.code, error.param) == ("invalid_value", "max_tokens")
    assert len(error.message) < 200


def test_duplicate_keys_and_escapes_are_fine():
    got = decode_chat(HEAD + b',"user":"a","user":"\\ud83d\\ude00\\u00e9 \\\\u0000"}', LIMITS)
    assert got.user == "😀é \\u0000"


@pytest.mark.parametrize(
    ("rest", "param"),
    [
        (b',"messages":[{"role":"user","content":"a\\u0000b"}]}', "messages[0].content"),
        (b',"messages":[{"role":"user","content":[{"type":"text","text":"\\u0000"}]}]}', "messages[0].content[0].text"),
        (b',"stop":["a","\\u0000"]}', "stop[1]"),
        (b',"response_format":{"type":"json_object","schema":{"a\\u0000":1}}}', "response_format.schema"),
        (b',"model":"\\u0000"}', "model"),
    ],
)
def test_nul_is_refused_in_every_field_that_is_read(rest, param):
    error = fault(HEAD + rest)
    assert (error.code, error.param) == ("invalid_value", param)


def test_nul_in_an_unknown_field_is_ignored_with_the_field():
    assert decode_chat(HEAD + b',"unknown":"\\u0000"}', LIMITS).model == "m"


def nested(levels, opening=b"[", closing=b"]"):
    return HEAD + b',"unknown":' + opening * levels + closing * levels + b"}"


def test_nesting_is_bounded_before_decoding():
    assert decode_chat(nested(LIMITS.json_depth - 1), LIMITS).model == "m"
    for body in (
        nested(LIMITS.json_depth),
        nested(LIMITS.json_depth, b'{"a":[', b"]}"),
        nested(100_000),
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ):
        error = fault(body)
        assert error.code == "invalid_json"
        assert "nested deeper than 64" in error.message


@pytest.mark.parametrize("tail", [b"", b',"stop":"\\u0000"'])
def test_a_limit_beyond_the_interpreter_s_own_is_still_a_400(tail):
    generous = LimitSettings(json_depth=1_000_000)
    for levels in (200, 450, 900, 5000, 100_000):
        schema = b'{"a":[' * levels + b"]}" * levels
        body = HEAD + b',"response_format":{"type":"json_object","schema":' + schema + b"}" + tail + b"}"
        survives(lambda data, _: decode_chat(data, generous), body)


def test_brackets_in_strings_are_not_nesting():
    text = json.dumps("[[{{\\" * 200 + '"[' * 200).encode()
    body = b'{"model":"m","messages":[{"role":"user","content":' + text + b"}]}"
    assert decode_chat(body, LIMITS).input[0]["content"].startswith("[[{{\\")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def depth_of(value):
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@given(values, st.integers(0, 5))
@example([['"\\', "\\\\", '\\"[['], [[]]], 1)
@example(["\\", "[[["], 1)
def test_the_depth_check_agrees_with_a_parser(value, limit):
    data = json.dumps(value).encode()
    assert _deeper_than(data, limit) == (depth_of(value) > limit)


def sendable(ask):
    """Whatever was accepted must also fit on the bus and come back equal."""
    job = Job(gep="g", sid=1, aid="a", tenant="t", version="1", deadline_ms=1, kind=ask.kind, model=ask.model,
              input=ask.input, tools=ask.tools, sampling=ask.sampling, stop=ask.stop, max_tokens=ask.max_tokens,
              seed=ask.seed, logprobs=ask.logprobs, grammar=ask.grammar)  # fmt: skip
    assert msgspec.msgpack.decode(encode(job), type=Job) == job


def survives(decode, body):
    error = None
    try:
        sendable(decode(body, LIMITS))
    except InvalidRequestError as caught:
        error = caught
    if error is not None:
        assert (error.status, error.kind) == (400, "invalid_request_error")
        assert 0 < len(error.message) < 1000


part = st.fixed_dictionaries({}, optional={"type": st.just("text") | values, "text": values, "refusal": values})
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | values},
    optional={
        "content": st.lists(part, max_size=3) | values,
        "tool_calls": values,
        "tool_call_id": values,
        "name": values,
    },
)


@given(st.sampled_from([name for name in ChatBody.__struct_fields__ if name != "messages"]), values)
def test_any_value_in_any_chat_field_is_an_ask_or_a_400(name, value):
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], name: value}
    survives(decode_chat, json.dumps(body).encode())


@given(st.lists(message, max_size=3) | values)
def test_any_messages_are_an_ask_or_a_400(messages):
    survives(decode_chat, json.dumps({"model": "m", "messages": messages}).encode())


schemas = st.fixed_dictionaries(
    {"type": st.sampled_from(["json_object", "json_schema"])},
    optional={"schema": values, "json_schema": st.fixed_dictionaries({"schema": values})},
)
tools = st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": st.fixed_dictionaries(
    {"name": st.just("f")}, optional={"parameters": st.dictionaries(st.text(max_size=3), values, max_size=3)})}))  # fmt: skip


@given(schemas, tools)
@example({"type": "json_object", "schema": {"a": 2**64}}, [])
@example({"type": "json_object"}, [{"type": "function", "function": {"name": "f", "parameters": {"a": -(2**63) - 1}}}])
def test_any_schema_is_sendable_or_a_400(response_format, tools):
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    survives(decode_chat, json.dumps({**body, "response_format": response_format, "tools": tools}).encode())


@given(st.sampled_from(TextBody.__struct_fields__), values)
def test_any_value_in_any_completion_field_is_an_ask_or_a_400(name, value):
    survives(decode_completion, json.dumps({"model": "m", "prompt": "x", name: value}).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_an_ask_or_a_400(body):
    survives(decode_chat, body)
    survives(decode_completion, body)


@given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_a_good_body_with_a_few_bytes_changed_is_an_ask_or_a_400(at, patch):
    body = HEAD + b',"tools":[{"type":"function","function":{"name":"f"}}],"stop":["\\u00e9"],"logit_bias":{"5":1.5}}'
    at %= len(body)
    survives(decode_chat, body[:at] + patch + body[at + len(patch) :])
