"""Failures that others reported and that need a real socket to be seen: see docs/field-reports.md."""

from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.stack import Stack, running


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(
        tmp_path_factory.mktemp("stack"),
        WORKERS__0__ENGINE="null",
        WORKERS__0__NULL_MODE="pace",
        WORKERS__0__NULL_RATE="20",
    ) as stack:
        yield stack


def body(**changes: object) -> dict[str, object]:
    return {"model": "null", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **changes}


def test_nothing_holds_a_stream_back(stack: Stack) -> None:
    """Headers that stop proxies from buffering, no compression though the client offers it, and tokens as they come."""
    headers = {**stack.headers, "accept-encoding": "gzip, deflate, br, zstd"}
    url = f"{stack.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body(stream=True, max_tokens=20), headers=headers, timeout=20) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in answer.headers
        assert "content-length" not in answer.headers
        pieces = [piece for piece in answer.iter_raw() if b'"content":"@' in piece]
    # Twenty tokens 50 ms apart: a layer that collects them would deliver one piece or two.
    assert len(pieces) > 10


@pytest.mark.parametrize("accept", ["application/json", "*/*", "text/event-stream", "text/html", None])
@pytest.mark.parametrize("stream", [True, False])
def test_only_the_field_decides_whether_to_stream(stack: Stack, accept: str | None, stream: bool) -> None:
    headers = {**stack.headers, **({"accept": accept} if accept else {})}
    answer = httpx.post(f"{stack.url}/v1/chat/completions", json=body(stream=stream), headers=headers, timeout=20)
    assert answer.status_code == 200
    if stream:
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert answer.json()["object"] == "chat.completion"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_read_in_any_case(stack: Stack, scheme: str) -> None:
    headers = {"authorization": f"{scheme} {stack.key}"}
    assert httpx.get(f"{stack.url}/v1/models", headers=headers, timeout=20).status_code == 200
    assert httpx.post(f"{stack.url}/v1/chat/completions", json=body(), headers=headers, timeout=20).status_code == 200


def test_no_origin_is_let_in(stack: Stack) -> None:
    """A page on another origin can read nothing: no header invites it, neither to the call nor to the question before."""
    headers = {**stack.headers, "origin": "https://elsewhere.example"}
    asked = {**headers, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    for answer in (
        httpx.post(f"{stack.url}/v1/chat/completions", json=body(), headers=headers, timeout=20),
        httpx.get(f"{stack.url}/v1/models", headers=headers, timeout=20),
        httpx.options(f"{stack.url}/v1/chat/completions", headers=asked, timeout=20),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control-")]
