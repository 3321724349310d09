"""Bad input over raw HTTP: each gets its documented answer, and the process does not move."""

import contextlib
import json
import socket
import time

import httpx
import pytest

from gateway.http.connection import HEAD_BYTES, UNWANTED_BYTES
from tests.e2e.stack import Stack, rss_mb

pytestmark = pytest.mark.timeout(120)

PATH = "/v1/chat/completions"
GOOD = {"model": "null", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
BODY_LIMIT = 4 * 1024 * 1024
SOCKET_BUFFERS = 16 * 1024 * 1024
"""More than what kernels hold between two sockets: bytes that were sent, but not read."""
POURED = 4 * SOCKET_BUFFERS
"""What a flood tries to send."""


@pytest.fixture
def unmoved(null: Stack):
    """The stack; afterwards it must be the same process, ready, with nothing left over."""
    before = null.pids("gateway.cli")
    assert len(before) == 1
    yield null
    assert null.pids("gateway.cli") == before
    assert httpx.get(f"{null.url}/ready", timeout=5).status_code == 200
    seen = null.settled()
    assert seen["evenflow_requests_in_flight"] == seen["evenflow_streams_held"] == seen["evenflow_streams_open"] == 0
    assert seen["evenflow_streams_buffered_bytes"] == seen['evenflow_worker_in_flight{worker="w1"}'] == 0
    answer = httpx.post(null.url + PATH, headers=null.headers, json=GOOD, timeout=10)
    assert answer.json()["usage"]["completion_tokens"] == 2


def head(stack: Stack, *lines: str, path: str = PATH) -> bytes:
    """A request head with a good key; each of `lines` is a header more."""
    fixed = [f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {stack.key}", "content-type: application/json"]
    return ("\r\n".join([*fixed, *lines]) + "\r\n\r\n").encode()


def connect(stack: Stack) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", stack.port), timeout=10)
    made.settimeout(5)
    return made


def status(sock: socket.socket) -> tuple[int, dict]:
    """Status and error of the next answer on a connection."""
    with sock.makefile("rb") as lines:
        code = int(lines.readline().split()[1])
        length = 0
        while (line := lines.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name == b"content-length" else length
        return code, json.loads(lines.read(length))["error"]


def ended(sock: socket.socket) -> bool:
    """Whether the server closes the connection."""
    with contextlib.suppress(ConnectionError):
        while sock.recv(65536):
            pass
    return True


def pour(sock: socket.socket, piece: bytes, most: int) -> int:
    """Send `piece` again and again until the connection breaks; how many bytes went out, at most `most`."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < most:
            sock.sendall(piece)
            sent += len(piece)
    return sent


def deep(levels: int) -> bytes:
    return b'{"model":"null","messages":' + b"[" * levels + b"]" * levels + b"}"


BODIES = {
    "empty": (b"", "invalid_json"),
    "blank": (b" \r\n ", "invalid_json"),
    "not json": (b"hello", "invalid_json"),
    "cut off": (json.dumps(GOOD).encode()[:-5], "invalid_json"),
    "trailing comma": (b'{"model":"null",}', "invalid_json"),
    "two values": (b"{}{}", "invalid_json"),
    "array": (b"[]", "invalid_type"),
    "string": (b'"x"', "invalid_type"),
    "null": (b"null", "invalid_type"),
    "no fields": (b"{}", "missing_required_parameter"),
    "nan": (b'{"model":"null","temperature":NaN}', "invalid_json"),
    "infinity": (b'{"model":"null","temperature":-Infinity}', "invalid_json"),
    "beyond a double": (b'{"model":"null","temperature":1e999}', "invalid_value"),
    "long integer": (b'{"model":"null","seed":' + b"9" * 400 + b"}", None),
    "lone surrogate": (b'{"model":"null","messages":[{"role":"user","content":"\\ud800"}]}', "invalid_json"),
    "nul": (b'{"model":"null","messages":[{"role":"user","content":"a\\u0000b"}]}', "invalid_value"),
    "raw control": (b'{"model":"null","messages":[{"role":"user","content":"a\x00b"}]}', "invalid_json"),
    "not utf-8": (b'{"model":"null","messages":[{"role":"user","content":"\xff\xfe"}]}', "invalid_json"),
    "utf-16": (json.dumps(GOOD).encode("utf-16"), "invalid_json"),
    "byte order mark": (b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), "invalid_json"),
    "deep": (deep(65), "invalid_json"),
    "very deep": (deep(1_000_000), "invalid_json"),
    "deep objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "invalid_json"),
    "gzip": (b"\x1f\x8b\x08\x00" + b"x" * 40, "invalid_json"),
    "model": (json.dumps({**GOOD, "model": 7}).encode(), "invalid_type"),
    "messages": (json.dumps({**GOOD, "messages": "hi"}).encode(), "invalid_type"),
    "content": (json.dumps({**GOOD, "messages": [{"role": "user", "content": 7}]}).encode(), "invalid_type"),
    "role": (json.dumps({**GOOD, "messages": [{"content": "hi"}]}).encode(), "missing_required_parameter"),
    "max_tokens true": (json.dumps({**GOOD, "max_tokens": True}).encode(), "invalid_type"),
    "max_tokens 2.5": (json.dumps({**GOOD, "max_tokens": 2.5}).encode(), "invalid_type"),
    "max_tokens -1": (json.dumps({**GOOD, "max_tokens": -1}).encode(), "invalid_value"),
    "stream": (json.dumps({**GOOD, "stream": "yes"}).encode(), "invalid_type"),
    "n": (json.dumps({**GOOD, "n": 10**6}).encode(), "invalid_value"),
    "stop": (json.dumps({**GOOD, "stop": ["x"] * 17}).encode(), "invalid_value"),
    "many messages": (json.dumps({**GOOD, "messages": GOOD["messages"] * 2049}).encode(), "invalid_value"),
}


@pytest.mark.parametrize("body", BODIES)
def test_a_bad_body_is_a_400_with_its_reason(unmoved, body):
    data, code = BODIES[body]
    headers = {**unmoved.headers, "content-type": "application/json"}
    for sent in (data, iter([data[: len(data) // 2], data[len(data) // 2 :]])):  # at once, then in chunks
        answer = httpx.post(unmoved.url + PATH, headers=headers, content=sent, timeout=10)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert code in {None, error["code"]}, error
        assert set(error) == {"message", "type", "param", "code"}
        assert answer.headers["x-should-retry"] == "false"


def test_a_body_over_the_limit_is_not_read_on(unmoved):
    with connect(unmoved) as sock:  # announced: refused before a byte of it comes
        sock.sendall(head(unmoved, "content-length: 10000000000"))
        assert status(sock)[0] == 413
        assert pour(sock, b" " * 65536, POURED) < UNWANTED_BYTES + SOCKET_BUFFERS
    with connect(unmoved) as sock:  # not announced: refused where it is too much
        sock.sendall(head(unmoved, "transfer-encoding: chunked"))
        sent = pour(sock, b"10000\r\n" + b" " * 65536 + b"\r\n", POURED)
        assert BODY_LIMIT < sent < BODY_LIMIT + UNWANTED_BYTES + SOCKET_BUFFERS
        code, error = status(sock)
        assert (code, error["code"]) == (413, "payload_too_large")
    exactly = json.dumps(GOOD).encode().ljust(BODY_LIMIT)
    headers = {**unmoved.headers, "content-type": "application/json"}
    assert httpx.post(unmoved.url + PATH, headers=headers, content=exactly, timeout=10).status_code == 200
    assert httpx.post(unmoved.url + PATH, headers=headers, content=exactly + b" ", timeout=10).status_code == 413


def test_a_body_without_a_good_key_is_not_read_on_either(unmoved):
    with connect(unmoved) as sock:
        sock.sendall(f"POST {PATH} HTTP/1.1\r\ncontent-type: application/json\r\n".encode())
        sock.sendall(b"transfer-encoding: chunked\r\n\r\n")
        assert status(sock)[0] == 401
        assert pour(sock, b"10000\r\n" + b" " * 65536 + b"\r\n", POURED) < UNWANTED_BYTES + SOCKET_BUFFERS


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", PATH, "POST"),
        ("PUT", PATH, "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET"),
        ("PATCH", "/v1/models/null", "GET"),
        ("POST", "/health", "GET"),
    ],
)
def test_a_wrong_method_is_told_the_right_one(unmoved, method, path, allow):
    answer = httpx.request(method, unmoved.url + path, headers=unmoved.headers, timeout=5)
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert allow in answer.headers["allow"].split(", ")
    assert method not in answer.headers["allow"].split(", ")


@pytest.mark.parametrize(
    "kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "*/*"]
)
def test_a_body_that_is_not_declared_as_json(unmoved, kind):
    headers = {**unmoved.headers, **({} if kind is None else {"content-type": kind})}
    answer = httpx.post(unmoved.url + PATH, headers=headers, content=json.dumps(GOOD).encode(), timeout=5)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    right = {**unmoved.headers, "content-type": "Application/JSON ; charset=utf-8"}
    assert httpx.post(unmoved.url + PATH, headers=right, json=GOOD, timeout=5).status_code == 200


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat", "/v2/models", "/v1/../admin", "/%ff%00", "/v1/models/%ff%00"])
def test_a_path_that_leads_nowhere(unmoved, path):
    with connect(unmoved) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {unmoved.key}\r\n\r\n".encode())
        assert status(sock)[0] == 404


@pytest.mark.parametrize(
    "garbage",
    [
        b"HELLO\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\na: b\x00c\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_400_and_closed(unmoved, garbage):
    with connect(unmoved) as sock:
        sock.sendall(garbage)
        code, error = status(sock)
        assert (code, error["code"]) == (400, "invalid_http")
        assert ended(sock)


@pytest.mark.parametrize("framing", ["content-length: 5000", "transfer-encoding: chunked"])
def test_a_client_that_goes_in_mid_body_leaves_nothing(unmoved, framing):
    for _ in range(20):
        with connect(unmoved) as sock:
            sock.sendall(head(unmoved, framing) + (b"10\r\n" if "chunked" in framing else b"") + b'{"model":')
    with connect(unmoved) as sock:
        sock.sendall(head(unmoved, "transfer-encoding: chunked") + b"zz\r\n")
        assert status(sock)[0] == 400
        assert ended(sock)


def test_pipelined_requests_are_answered_in_order(unmoved):
    body = json.dumps({**GOOD, "model": "none such"}).encode()
    unknown = head(unmoved, f"content-length: {len(body)}") + body
    wrong = head(unmoved, "content-length: 2") + b"[]"
    with connect(unmoved) as sock:
        sock.sendall((unknown + wrong) * 5)
        with sock.makefile("rb") as lines:
            got = [int(line.split()[1]) for line in _status_lines(lines, 10)]
    assert got == [404, 400] * 5


def _status_lines(lines, count):
    while count:
        line = lines.readline()
        assert line
        if b"HTTP/1.1 " in line:
            yield line[line.index(b"HTTP/1.1 ") :]
            count -= 1


def test_floods_of_headers_and_requests_take_no_memory(unmoved):
    (pid,) = unmoved.pids("gateway.cli")
    before = rss_mb(pid)
    many = b"".join(b"x-%d: aaaaaaaaaaaaaaaa\r\n" % number for number in range(2000))
    for start, piece in (
        (b"GET /health HTTP/1.1\r\nx-a: ", b"a" * 65536),
        (b"GET /health HTTP/1.1\r\n", many),
        (b"GET /", b"a" * 65536),
        (head(unmoved, "transfer-encoding: chunked") + b"2\r\n{}\r\n0\r\n", many),
    ):
        with connect(unmoved) as sock:
            sock.sendall(start)
            assert pour(sock, piece, POURED) < HEAD_BYTES + SOCKET_BUFFERS
            with contextlib.suppress(ConnectionError):
                assert status(sock)[0] in {400, 431}
    with connect(unmoved) as sock:
        sock.settimeout(0)
        sent, until = 0, time.monotonic() + 20
        with contextlib.suppress(ConnectionError):
            while sent < POURED and time.monotonic() < until:  # answers are not read: that is the flood
                with contextlib.suppress(BlockingIOError):
                    sent += sock.send(b"GET /health HTTP/1.1\r\n\r\n" * 2000)
        assert sent < SOCKET_BUFFERS
        assert time.monotonic() < until
    assert rss_mb(pid) - before < 20


def test_five_hundred_bad_requests_leave_no_trace(unmoved):
    (pid,) = unmoved.pids("gateway.cli")
    headers = {**unmoved.headers, "content-type": "application/json"}
    small = [data for data, _ in BODIES.values() if len(data) < 100_000]
    with httpx.Client(base_url=unmoved.url, headers=headers, timeout=10) as client:

        def round_of(count: int) -> None:
            for number in range(count):
                assert client.post(PATH, content=small[number % len(small)]).status_code == 400

        round_of(50)
        series, before = len(unmoved.metrics()), rss_mb(pid)
        round_of(500)
        for number in range(50):
            client.post(PATH, json={**GOOD, "model": f"unknown-{number}"})
    assert rss_mb(pid) - before < 20
    assert len(unmoved.metrics()) - series < 60  # one outcome more, not fifty models
