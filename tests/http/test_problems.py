"""Errors as clients see them, and what official clients do next."""

import json
import math

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.api import Ask
from gateway.http.problems import LONGEST_S, PATIENCE_S, render
from gateway.outcome import from_fail, from_nack
from shared.errors import (
    AuthenticationError,
    ContextLengthError,
    DeadlineError,
    HttpError,
    InvalidRequestError,
    MediaTypeError,
    MethodNotAllowedError,
    NotFoundError,
    PayloadTooLargeError,
    PermissionDeniedError,
    RateLimitError,
    UnavailableError,
    UpstreamError,
)
from shared.wire import Fail, Nack, Usage

CASES = [
    (InvalidRequestError("m", param="n"), 400, "invalid_request_error", "invalid_value", False),
    (
        ContextLengthError(prompt_tokens=9, max_tokens=2, context=10),
        400,
        "invalid_request_error",
        "context_length_exceeded",
        False,
    ),
    (AuthenticationError(), 401, "authentication_error", "invalid_api_key", False),
    (PermissionDeniedError("m", code="model_not_allowed"), 403, "permission_error", "model_not_allowed", False),
    (NotFoundError("m", code="model_not_found"), 404, "invalid_request_error", "model_not_found", False),
    (MethodNotAllowedError("m", allow=("GET", "HEAD")), 405, "invalid_request_error", "method_not_allowed", False),
    (PayloadTooLargeError("m"), 413, "invalid_request_error", "payload_too_large", False),
    (MediaTypeError("m"), 415, "invalid_request_error", "unsupported_media_type", False),
    (RateLimitError("m", code="requests", retry_after=3), 429, "rate_limit_error", "requests", True),
    (RateLimitError("m", code="insufficient_quota"), 429, "rate_limit_error", "insufficient_quota", False),
    (
        RateLimitError("m", code="insufficient_quota", retry_after=86_400),
        429,
        "rate_limit_error",
        "insufficient_quota",
        False,
    ),
    (UnavailableError("m", retry_after=3), 503, "service_unavailable", "overloaded", True),
    (UnavailableError("m", code="no_worker"), 503, "service_unavailable", "no_worker", True),
    (UnavailableError("m", retry_after=86_400), 503, "service_unavailable", "overloaded", False),
    (DeadlineError("m"), 504, "timeout_error", "timeout", False),
    (UpstreamError("m", retryable=True), 502, "server_error", "worker_failed", True),
    (UpstreamError("m"), 502, "server_error", "worker_failed", False),
    (ZeroDivisionError("secret"), 500, "server_error", "internal_error", False),
]


def ask(kind="chat", max_tokens=None):
    return Ask(kind=kind, model="tiny", input=[], max_tokens=max_tokens)


@pytest.mark.parametrize(("exc", "status", "kind", "code", "again"), CASES, ids=lambda v: type(v).__name__)
def test_every_error_has_openai_s_shape_and_says_whether_to_come_back(exc, status, kind, code, again):
    got, pairs, body = render(exc, "req-1")
    headers = dict(pairs)
    assert len(headers) == len(pairs)
    error = json.loads(body)["error"]
    assert (got, error["type"], error["code"]) == (status, kind, code)
    assert list(error) == ["message", "type", "param", "code"]
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"content-length"] == b"%d" % len(body)
    assert headers[b"x-request-id"] == b"req-1"
    assert headers[b"x-should-retry"] == (b"true" if again else b"false")
    assert (b"retry-after" in headers) == (getattr(exc, "retry_after", None) is not None)
    assert (b"allow" in headers) == (status == 405)
    assert (b"www-authenticate" in headers) == (status == 401)


@pytest.mark.parametrize(("exc", "status", "kind", "code", "again"), CASES, ids=lambda v: type(v).__name__)
def test_the_official_client_obeys(exc, status, kind, code, again):
    got, headers, body = render(exc, "req-1")
    response = httpx.Response(got, headers=headers, content=body, request=httpx.Request("POST", "http://x/v1"))
    with openai.OpenAI(api_key="k") as client:
        assert client._should_retry(response) is again
        error = client._make_status_error_from_response(response)
    assert error.status_code == status
    assert (error.code, error.type) == (code, kind)


def test_named_headers():
    assert (b"allow", b"GET, HEAD") in render(MethodNotAllowedError("m", allow=("GET", "HEAD")), "r")[1]
    assert (b"www-authenticate", b"Bearer") in render(AuthenticationError(), "r")[1]
    assert json.loads(render(InvalidRequestError("m", param="n"), "r")[2])["error"]["param"] == "n"


@pytest.mark.parametrize(
    ("wait", "seconds", "ms"), [(0, b"1", b"1"), (0.2, b"1", b"200"), (1.0001, b"2", b"1001"), (2, b"2", b"2000")]
)
def test_waits_are_whole_seconds_rounded_up(wait, seconds, ms):
    headers = dict(render(RateLimitError("m", retry_after=wait), "r")[1])
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (seconds, ms)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_wait_renders(wait):
    headers = dict(render(UnavailableError("m", retry_after=wait), "r")[1])
    if math.isnan(wait):
        assert b"retry-after" not in headers
    else:
        assert int(headers[b"retry-after"]) >= max(1, min(wait, LONGEST_S))
        assert int(headers[b"retry-after-ms"]) <= LONGEST_S * 1000
        assert headers[b"x-should-retry"] == (b"true" if wait <= PATIENCE_S else b"false")


@pytest.mark.parametrize("exc", [RuntimeError("secret /path"), KeyError("secret"), Exception()])
def test_what_went_wrong_inside_stays_inside(exc):
    status, _, body = render(exc, "r")
    assert status == 500
    assert b"secret" not in body
    assert json.loads(body)["error"]["message"]


def test_what_went_wrong_inside_is_logged_without_what_the_client_sent():
    try:
        {}["my secret prompt"]
    except KeyError as caught:
        error = caught
    with capture_logs() as logs:
        render(error, "req-7")
        render(InvalidRequestError("m"), "req-8")
    [line] = logs
    assert (line["log_level"], line["request_id"], line["error"]) == ("error", "req-7", "KeyError")
    assert "test_problems.py" in line["where"][-1]
    assert "prompt" not in str({**line, "where": ""})


NACKS = [
    ("busy", UnavailableError, "overloaded"),
    ("draining", UnavailableError, "draining"),
    ("unknown_model", UnavailableError, "no_worker"),
    ("deadline", DeadlineError, "timeout"),
    ("bad_request", InvalidRequestError, "invalid_value"),
    ("cancelled", UpstreamError, "worker_failed"),
    ("bad_proto", UpstreamError, "worker_failed"),
    ("internal", UpstreamError, "worker_failed"),
    ("too_large", InvalidRequestError, "context_length_exceeded"),
]


@pytest.mark.parametrize(("code", "kind", "shown"), NACKS)
def test_a_refused_job(code, kind, shown):
    error = from_nack(Nack(wep="w", sid=1, code=code, message="why", retry_after_ms=2500), ask())
    assert (type(error), error.code) == (kind, shown)
    if kind is UnavailableError:
        assert error.retry_after == 2.5
    if kind is UpstreamError:
        assert error.retryable
        assert "why" not in error.message


def test_unavailable_always_says_when():
    assert from_nack(Nack(wep="w", sid=1, code="busy", message=""), ask()).retry_after > 0
    assert from_fail(Fail(1, 2, "unloaded", "", retryable=True), ask()).retry_after > 0


@pytest.mark.parametrize(("kind", "param"), [("chat", "messages"), ("text", "prompt"), ("ids", "prompt")])
def test_a_prompt_that_is_too_long_is_told_with_both_counts(kind, param):
    nack = Nack(wep="w", sid=1, code="too_large", message="no", prompt_tokens=2000, limit=2048)
    error = from_nack(nack, ask(kind, max_tokens=100))
    assert isinstance(error, ContextLengthError)
    assert (error.prompt_tokens, error.max_tokens, error.context, error.param) == (2000, 100, 2048, param)
    assert "2048" in error.message
    assert "2100" in error.message
    alone = from_nack(nack, ask(kind))
    assert alone.max_tokens is None
    assert "your prompt has 2000 tokens." in alone.message


def test_a_bad_request_keeps_the_worker_s_words_and_field():
    nack = Nack(wep="w", sid=1, code="bad_request", message="bad pattern '('", param="response_format")
    error = from_nack(nack, ask())
    assert (error.status, error.message, error.param) == (400, "bad pattern '('", "response_format")


@pytest.mark.parametrize(
    ("message", "param"),
    [("logit_bias: token ids are below 49152", "logit_bias"), ("no such: thing", None), ("the engine says no", None)],
)
def test_a_bad_request_found_by_the_engine_names_its_field(message, param):
    error = from_fail(Fail(1, 2, "bad_request", message, retryable=False), ask())
    assert (error.status, error.message, error.param) == (400, message, param)


@pytest.mark.parametrize(
    ("code", "kind", "shown"),
    [
        ("too_large", InvalidRequestError, "context_length_exceeded"),
        ("bad_request", InvalidRequestError, "invalid_value"),
        ("deadline", DeadlineError, "timeout"),
        ("unloaded", UnavailableError, "draining"),
        ("engine_fault", UpstreamError, "worker_failed"),
        ("never heard of", UpstreamError, "worker_failed"),
    ],
)
@pytest.mark.parametrize("retryable", [True, False])
def test_a_failed_generation(code, kind, shown, retryable):
    error = from_fail(Fail(1, 2, code, "CUDA error at 0x7f", retryable=retryable, usage=Usage()), ask())
    assert isinstance(error, HttpError)
    assert (type(error), error.code) == (kind, shown)
    if kind is UpstreamError:
        assert error.retryable is retryable
        assert "CUDA" not in error.message
