"""Whether a request can be run at all: one set of rules for every engine, before any library sees it."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import jsonschema
import msgspec
from jsonschema.validators import validator_for

from shared.wire import Grammar
from workers.engines.base import Capabilities, EngineRequest, Failed, TooLong

MAX_TOP_LOGPROBS: Final = 20
MAX_SCHEMA_PARTS: Final = 2_000
MAX_SCHEMA_BYTES: Final = 64 * 1024
"""Beyond these, checking and compiling a schema takes seconds in which the worker does nothing else."""
_DIALECTS: Final = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
)
_GRAMMAR_FEATURES: Final = {"json_object": "json_object", "json_schema": "json_schema", "regex": "regex"}


def too_long(request: EngineRequest, context: int) -> TooLong | None:
    """The counts if prompt + max_tokens is more than the context. Both include the tokens of a resume once."""
    if len(request.prompt) + request.max_tokens <= context:
        return None
    return TooLong(len(request.prompt), request.max_tokens, context)


def refuse(request: EngineRequest, capabilities: Capabilities) -> Failed | None:
    """The typed failure of a request that this engine cannot run as asked; None if it can."""
    if (long := too_long(request, capabilities.context)) is not None:
        counts = f"{long.prompt_tokens} tokens in the prompt and {long.max_tokens} for the completion"
        return Failed("too_large", retryable=False, message=f"{counts} do not fit into a context of {long.context}")
    problem = _problem(request, capabilities)
    return None if problem is None else Failed("bad_request", retryable=False, message=problem)


def _problem(request: EngineRequest, capabilities: Capabilities) -> str | None:
    size = capabilities.vocab_size
    sampling = request.sampling
    if not request.prompt:
        return "prompt: it has no tokens"
    if request.max_tokens < 1:
        return "max_tokens: at least 1"
    if not all(0 <= token < size for token in request.prompt):
        return f"prompt: token ids are below {size}"
    if request.resume is not None:
        if "resume" not in capabilities.features:
            return "resume: this model cannot go on from tokens"
        if not all(0 <= token < size for token in request.resume.ids) or len(request.resume.ids) > request.max_tokens:
            return f"resume: at most max_tokens ids below {size}"
    if not 0 <= request.min_tokens <= request.max_tokens:
        return "min_tokens: between 0 and max_tokens"
    if not all(request.stop):
        return "stop: an empty string stops nothing"
    if not all(0 <= token < size for token in request.stop_ids):
        return f"stop_ids: token ids are below {size}"
    if not all(0 <= token < size for token in sampling.logit_bias):
        return f"logit_bias: token ids are below {size}"
    if not sampling.temperature >= 0:
        return "temperature: at least 0"
    if not 0 < sampling.top_p <= 1:
        return "top_p: above 0 and at most 1"
    if sampling.top_k < 0 or not 0 <= sampling.min_p <= 1 or not sampling.repetition_penalty > 0:
        return "top_k, min_p, repetition_penalty: out of range"
    if request.top_logprobs is not None:
        if "logprobs" not in capabilities.features:
            return "logprobs: this model cannot give them"
        if not 0 <= request.top_logprobs <= MAX_TOP_LOGPROBS:
            return f"top_logprobs: between 0 and {MAX_TOP_LOGPROBS}"
    if request.grammar is not None:
        if _GRAMMAR_FEATURES[request.grammar.kind] not in capabilities.features:
            return f"response_format: this model cannot be held to {request.grammar.kind}"
        return grammar_problem(request.grammar)
    return None


def grammar_problem(grammar: Grammar) -> str | None:
    """What is wrong with a constraint, by name; None if it is well formed."""
    if grammar.kind == "json_object":
        return None
    if grammar.kind == "regex":
        return _pattern_problem(grammar.schema)
    try:
        if (parts := _parts(grammar.schema)) > MAX_SCHEMA_PARTS:
            return f"response_format: the schema has {parts} or more parts; at most {MAX_SCHEMA_PARTS} are allowed"
        text = msgspec.json.encode(grammar.schema)
        if len(text) > MAX_SCHEMA_BYTES:
            return f"response_format: the schema has {len(text)} bytes; at most {MAX_SCHEMA_BYTES} are allowed"
        return _schema_problem(text)
    except RecursionError:
        return "response_format: the schema is nested too deeply"
    except (TypeError, msgspec.MsgspecError) as error:
        return f"response_format: the schema is no JSON value ({error})"


def _pattern_problem(pattern: Any) -> str | None:
    try:
        re.compile(pattern)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        return f"response_format: the pattern {pattern!r} is not a regular expression ({error})"
    return None


def broken_promise(grammar: Grammar, text: str) -> str | None:
    """What is wrong with a finished answer that was held to `grammar`; None if it kept to it.

    Engines have limits of their own within which a grammar holds, and some go on without it past them.
    """
    if grammar.kind == "regex":
        return None if re.fullmatch(grammar.schema, text) else "the answer does not match the pattern"
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return "the answer is not JSON"
    if grammar.kind == "json_object":
        return None if isinstance(value, dict) else "the answer is not a JSON object"
    try:
        kind = validator_for(grammar.schema, default=jsonschema.Draft202012Validator)
        kind(grammar.schema).validate(value)
    except jsonschema.ValidationError as error:
        return f"the answer does not satisfy the schema at {error.json_path}"
    except RecursionError:
        return "the answer is nested too deeply"
    return None


def _parts(value: Any) -> int:
    """How many objects, list items and members a schema has, counted no further than one past the bound."""
    parts, todo = 0, [value]
    while todo and parts <= MAX_SCHEMA_PARTS:
        item = todo.pop()
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list | tuple) else ()
        parts += 1
        todo += inner
    return parts


@lru_cache(maxsize=256)
def _schema_problem(text: bytes) -> str | None:
    schema = msgspec.json.decode(text)
    if not isinstance(schema, dict):
        return "response_format: a JSON schema is an object"
    dialect = schema.get("$schema", _DIALECTS[0])
    if not isinstance(dialect, str) or dialect.rstrip("#") not in _DIALECTS:
        return f"response_format: the dialect {dialect!r} is not known; {', '.join(_DIALECTS)} are"
    try:
        validator_for(schema, default=jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(map(str, error.absolute_path)) or "(root)"
        return f"response_format: the schema is wrong at {where}: {error.message}"
    for key, value in _keywords(schema):
        if key == "pattern" and (problem := _pattern_problem(value)):
            return problem
        if key == "$ref" and not (isinstance(value, str) and value.startswith("#")):
            return f"response_format: {value!r} points outside the schema"
    return None


def _keywords(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every keyword of a schema and its parts. Names of properties are not keywords, nor are constants and examples."""
    if isinstance(schema, list):
        for item in schema:
            yield from _keywords(item)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            yield key, value
            if key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
                if key == "patternProperties":
                    yield from (("pattern", pattern) for pattern in value)
                yield from (found for part in value.values() for found in _keywords(part))
            elif key not in ("const", "enum", "default", "examples"):
                yield from _keywords(value)
