"""Schemas are judged before anything is generated."""

import pytest

from shared.wire import Grammar
from workers.engines.checks import grammar_problem


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
