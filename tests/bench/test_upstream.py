"""The stand-in for a model server, in both languages, under the real load client."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from infra.bench import systems
from infra.bench.peers import ROOT
from infra.bench.processes import started

COMPILER = shutil.which("cc") or shutil.which("gcc")
LANGUAGES = ["Python", "C"] if COMPILER else ["Python"]


@contextlib.contextmanager
def upstream(language: str, tmp_path, monkeypatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(systems, "BUILD", tmp_path)
    if language == "Python":
        monkeypatch.setattr(systems, "compiled_upstream", lambda: None)
    monkeypatch.setattr(systems, "OTHER_CORE", None)
    with systems.upstream(tmp_path) as (url, made_with, _):
        assert made_with == language
        yield url, int(url.rsplit(":", 1)[1])


@pytest.fixture(params=LANGUAGES)
def running(request, tmp_path, monkeypatch):
    with upstream(request.param, tmp_path, monkeypatch) as (url, _):
        yield url


def load(mode: str, url: str, *words: str) -> dict:
    command = [sys.executable, "-m", "infra.bench.load", mode, "--url", f"{url}/v1", "--pid", str(os.getpid()), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    result = json.loads(done.stdout)
    assert done.returncode == (1 if result["errors"] else 0), done.stderr
    return result


def post(url: str, **body) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json={"messages": [], **body}, timeout=30)


def test_it_answers_as_asked(running):
    assert [model["id"] for model in httpx.get(f"{running}/v1/models").json()["data"]] == ["flood", "paced", "slow"]
    whole = post(running, model="flood").json()
    assert whole["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] == 12
    for model, wanted, pace_ns in (("flood", 7, 0), ("paced", 3, 20e6), ("slow", 2, 200e6)):
        began = time.monotonic_ns()
        answer = post(running, model=model, stream=True, max_tokens=wanted)
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        texts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks if chunk["choices"]]
        assert texts[0] == ""
        assert texts[-1] is None
        assert len(texts[1:-1]) == wanted
        assert chunks[-1]["usage"]["completion_tokens"] == wanted
        stamps = [int(match[1]) for text in texts[1:-1] if (match := re.fullmatch(r"@(\d+)@ ", text))]
        assert len(stamps) == (0 if model == "flood" else wanted)
        # A turn that comes late is made up for by the next one, so only the last one says anything of the pace.
        assert not stamps or stamps[-1] - began >= wanted * pace_ns


def test_requests_in_one_packet_are_answered_one_after_the_other(running):
    """Behind an open stream, too: the next request waits for its end."""
    host, port = running.removeprefix("http://").split(":")
    bodies = [b'{"model":"paced","stream":true,"max_tokens":2}', b'{"model":"flood"}']
    requests = b"".join(b"POST /v1/x HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body) for body in bodies)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(requests)
        seen = b""
        while b"Hello there!" not in seen:
            got = connection.recv(65536)
            assert got, seen
            seen += got
    assert seen.index(b"[DONE]") < seen.index(b"Hello there!")


def test_loads_count_what_was_sent(running):
    sat = load("sat", running, "--model", "flood", "-c", "4", "-d", "0.3", "--warm", "1")
    assert sat["errors"] == {}
    assert sat["done"] > 0
    assert sat["per_s"] > 0
    assert sat["rss_mb"] > 1
    stream = load("stream", running, "--model", "flood", "-c", "2", "-d", "0.3", "--expect", "100", "--warm", "1")
    assert stream["errors"] == {}
    assert stream["done"] > 0
    first = load("ttfc", running, "--model", "flood", "--rate", "20", "-d", "0.5", "--expect", "100", "--warm", "1")
    assert first["errors"] == {}
    assert first["done"] == 10
    assert 0 < first["p50_ms"] <= first["p99_ms"]
    paced = load("paced", running, "--model", "paced", "-c", "3", "--max-tokens", "5", "--expect", "5", "--warm", "0")
    assert paced["errors"] == {}
    assert paced["done"] == 3
    assert paced["delay_p50_ms"] > 0
    assert paced["p50_ms"] > 50
    hold = load("hold", running, "--model", "slow", "-c", "20", "-d", "60", "--max-tokens", "1000", "--warm", "0")
    assert hold["errors"] == {}
    assert hold["rss_mb"] > 1


def test_loads_tell_what_they_did_not_get(running):
    short = load("stream", running, "--model", "flood", "-c", "1", "-d", "0.1", "--expect", "99", "--warm", "0")
    assert short["done"] == 0
    assert "100 chunks, not 99" in short["errors"]
    never = load("hold", running, "--model", "slow", "-c", "2", "-d", "0", "--warm", "0")
    assert any(what.endswith("streams open after 0 s") for what in never["errors"])
    gone = load("rate", "http://127.0.0.1:1", "--rate", "5", "-d", "0.4", "--warm", "0")
    assert gone["errors"] == {"ConnectionRefusedError": 2}


def test_both_languages_say_the_same(tmp_path, monkeypatch):
    said = []
    for language in LANGUAGES:
        with monkeypatch.context() as patch, upstream(language, tmp_path, patch) as (url, port):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                body = b'{"model": "flood", "stream": true}'
                connection.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body
                )
                seen = b""
                while not seen.endswith(b"\r\n0\r\n\r\n"):
                    seen += connection.recv(65536)
            said.append((seen, post(url, model="paced").content, httpx.get(f"{url}/v1/models").content))
    assert said[0] == said[-1]
    assert said[0][0].count(b'"content":" token"') == 100


def test_the_floor_serves_every_load(tmp_path, monkeypatch):
    monkeypatch.setattr(systems, "GATEWAY_CORE", None)
    monkeypatch.setattr(systems, "IDLE_S", 0.05)
    with systems.floors(tmp_path) as (litestar, bare):
        monkeypatch.setenv("EVENFLOW_BENCH_KEY", litestar.key)
        words = ("-c", "2", "-d", "0.2", "--expect", "100", "--warm", "0")
        for url, mode in (
            (litestar.urls["flood"], "stream"),
            (bare.urls["flood"], "stream"),
            (bare.urls["paced"], "paced"),
        ):
            made = load(mode, url.removesuffix("/v1"), *words)
            assert made["errors"] == {}
            assert made["done"] > 0
        assert litestar.started()["wrong_key"] == 401


def test_what_does_not_compile_falls_back(tmp_path, monkeypatch, capsys):
    (tmp_path / "upstream.c").write_text("int main(void) { return nothing; }\n")
    monkeypatch.setattr(systems, "HERE", tmp_path)
    monkeypatch.setattr(systems, "BUILD", tmp_path)
    assert systems.compiled_upstream() is None
    assert COMPILER is None or "does not compile" in capsys.readouterr().err


def test_a_process_that_ends_is_unavailable_with_its_last_word(tmp_path):
    log = tmp_path / "log"
    code = "print('no luck in /some/where/x.py'); exit(3)"
    with (
        started([sys.executable, "-c", code], log, cwd=tmp_path) as process,
        pytest.raises(systems.UnavailableError, match=r"status 3: no luck in x\.py"),
    ):
        systems.wait_for(process, log, lambda: (False, "nothing"))
