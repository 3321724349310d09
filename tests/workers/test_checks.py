"""Schemas are judged before anything is generated."""

import pytest

from shared.wire import Grammar
from workers.engines.checks import MAX_SCHEMA_BYTES, MAX_SCHEMA_PARTS, broken_promise, grammar_problem


def schema(value):
    return grammar_problem(Grammar(kind="json_schema", schema=value))


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"type": "object", "properties": {"pattern": {"type": "integer"}, "$ref": {"const": 1}}},
        {"$defs": {"a": {"type": "string", "pattern": "^a+$"}}, "$ref": "#/$defs/a"},
        {"enum": [{"pattern": "["}], "default": {"pattern": "["}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"},
    ],
    ids=str,
)
def test_good_schemas_pass(good):
    assert schema(good) is None


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ([], "object"),
        ("x", "object"),
        ({"type": "nonsense"}, "type"),
        ({"properties": {"a": {"minimum": "x"}}}, "properties/a/minimum"),
        ({"properties": {"pattern": {"pattern": "["}}}, "["),
        ({"patternProperties": {"(": {}}}, "("),
        ({"items": [{"anyOf": [{"pattern": "a**"}]}], "$schema": "http://json-schema.org/draft-07/schema#"}, "a**"),
        ({"anyOf": [{"$ref": "file:///etc/passwd"}]}, "outside"),
        ({"const": float("inf"), "type": 5}, "type"),
        (["x"], "object"),
    ],
    ids=str,
)
def test_bad_schemas_are_named(bad, named):
    problem = schema(bad)
    assert problem is not None
    assert problem.startswith("response_format: ")
    assert named in problem


def test_a_schema_nested_out_of_hand_is_refused_not_a_crash():
    deep = {}
    for _ in range(5000):
        deep = {"not": deep}
    assert schema(deep) is not None


def test_patterns():
    assert grammar_problem(Grammar(kind="json_object")) is None
    assert grammar_problem(Grammar(kind="regex", schema="a+")) is None
    for bad in ("(", 5, None):
        assert "response_format" in grammar_problem(Grammar(kind="regex", schema=bad))


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"properties": {f"p{n}": {"type": "string"} for n in range(MAX_SCHEMA_PARTS)}}, "parts"),
        ({"enum": list(range(MAX_SCHEMA_PARTS))}, "parts"),
        ({"description": "x" * MAX_SCHEMA_BYTES}, "bytes"),
        ({"$schema": "http://json-schema.org/draft-03/schema#", "type": "string"}, "dialect"),
        ({"$schema": 7}, "dialect"),
    ],
    ids=["properties", "enum", "text", "old dialect", "no dialect"],
)
def test_what_would_keep_a_worker_busy_is_refused_unread(bad, named):
    assert named in schema(bad)


def test_as_large_as_is_allowed_is_allowed():
    assert schema({"properties": {f"p{n}": {} for n in range(MAX_SCHEMA_PARTS - 10)}}) is None


PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.mark.parametrize(
    ("kind", "given", "text", "kept"),
    [
        ("json_object", None, '{"a": 1}', True),
        ("json_object", None, "[1]", False),
        ("json_object", None, "Hello! How can I help?", False),
        ("json_schema", PERSON, '{"age": 3}', True),
        ("json_schema", PERSON, '{"age": "3"}', False),
        ("json_schema", PERSON, "{}", False),
        ("json_schema", PERSON, '{"age": 3} and more', False),
        ("json_schema", {"type": "string", "pattern": "^a+$"}, '"aaa"', True),
        ("json_schema", {"type": "string", "pattern": "^a+$"}, '"Hello"', False),
        ("regex", "[0-9]+", "12", True),
        ("regex", "[0-9]+", "12x", False),
    ],
)
def test_a_finished_answer_is_held_to_what_was_promised(kind, given, text, kept):
    assert (broken_promise(Grammar(kind=kind, schema=given), text) is None) is kept
