"""`evenflow up --tls`: who trusts its authority is served, by the lines that it prints; who does not is not."""

import contextlib
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.clients import command
from tests.e2e.stack import Stack

AUTHORITY = Path(".evenflow/tls/authority/ca.pem")
PATIENCE_S = 30.0


class OverTls(Stack):
    """As a developer starts it, with the first answer on the terminal."""

    flags = ("--tls", "--engine", "null")

    def start(self) -> "OverTls":
        super().start()
        self.url = f"https://127.0.0.1:{self.port}"
        until = time.monotonic() + PATIENCE_S
        while "serving until" not in self.said() and time.monotonic() < until:
            time.sleep(0.05)
        return self

    def said(self) -> str:
        return (self.directory / "up.out").read_text()

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.directory / AUTHORITY))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverTls]:
    stack = OverTls(tmp_path_factory.mktemp("up-tls"))
    stack.start()
    try:
        yield stack
    finally:
        stack.stop()


def printed(said: str, begins: str) -> str:
    """A recipe of the output: from the line that begins so to the next that is not indented."""
    lines = said[said.index(begins) :].splitlines()
    end = next(n for n, line in enumerate([*lines, "."]) if line and not line.startswith(" ") and n)
    return "\n".join(line.removeprefix("  ") for line in lines[:end])


def ran(command: list[str], directory: Path, **variables: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("EVENFLOW_", "SSL_CERT_"))}
    done = subprocess.run(
        command,
        cwd=directory,
        env={**environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S * 2,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_answer_is_streamed_over_tls(stack: OverTls) -> None:
    said = stack.said()
    assert f"TLS for localhost, 127.0.0.1, ::1; clients trust {AUTHORITY}" in said
    assert f"ready on https://127.0.0.1:{stack.port}" in said
    assert re.search(r"\n\(\d+ prompt \+ 48 completion tokens, first after ", said), said
    assert "still serving" not in said


def test_the_printed_lines_work_as_printed(stack: OverTls) -> None:
    said = stack.said()
    streamed = ran(["bash", "-c", printed(said, "  curl -N")], stack.directory)
    assert streamed.endswith("data: [DONE]\n\n")
    program = printed(said, "  import ssl")
    assert "http://" not in program
    assert ran([sys.executable, "-W", "error", "-c", program], stack.directory).startswith("The quick brown fox")


def test_the_lines_of_certs_dev_work_as_printed(stack: OverTls) -> None:
    said = command(stack, "certs", "dev").replace("localhost:8080", f"localhost:{stack.port}")
    assert said.startswith("All there, and good:")
    (curl,) = [line for line in said.splitlines() if line.startswith("  curl --cacert")]
    assert '"ok"' in ran(["bash", "-c", curl], stack.directory)
    (variable,) = re.findall(r"SSL_CERT_FILE=(\S+) python", said)
    asking = f"""
import openai
client = openai.OpenAI(base_url="{stack.url}/v1", api_key=open(".evenflow/demo.key").read().strip(), max_retries=0)
print([model.id for model in client.models.list()])
"""
    program = [sys.executable, "-W", "error", "-c", asking]
    assert ran(program, stack.directory, SSL_CERT_FILE=variable) == "['null']\n"
    # The last block makes a client of its own; asked as above, it gets the same.
    own = printed(said, "  import ssl").replace("OpenAI(base", "OpenAI(max_retries=0, api_key=KEY, base")
    own = f"KEY = open('.evenflow/demo.key').read().strip()\n{own}\nprint([m.id for m in client.models.list()])"
    assert ran([sys.executable, "-W", "error", "-c", own], stack.directory) == "['null']\n"


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_who_trusts_the_authority_gets_in_by_every_name(stack: OverTls, name: str) -> None:
    with (
        socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S) as raw,
        stack.trust().wrap_socket(raw, server_hostname=name) as tls,
    ):
        assert tls.version() in ("TLSv1.2", "TLSv1.3")


def test_who_does_not_trust_it_does_not(stack: OverTls) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{stack.url}/health", timeout=PATIENCE_S, trust_env=False)
    assert httpx.get(f"{stack.url}/health", verify=stack.trust(), timeout=PATIENCE_S).status_code == 200
    with (
        socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S) as raw,
        pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'other\.example'"),
    ):
        stack.trust().wrap_socket(raw, server_hostname="other.example")


def test_plain_http_is_refused_in_words_and_no_key_crosses(stack: OverTls) -> None:
    plain = f"http://127.0.0.1:{stack.port}"
    for method, path in (("GET", "/health"), ("POST", "/v1/chat/completions"), ("PUT", "/v1/models")):
        answer = httpx.request(method, plain + path, headers=stack.headers, timeout=PATIENCE_S, trust_env=False)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "https_required"
        assert answer.headers["connection"] == "close"
        assert answer.headers["x-should-retry"] == "false"
    with (
        openai.OpenAI(base_url=f"{plain}/v1", api_key=stack.key) as client,
        pytest.raises(openai.BadRequestError, match="use https:// instead of http://"),
    ):
        client.chat.completions.create(model="null", messages=[{"role": "user", "content": "x"}])
    with socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")
        raw.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        with contextlib.suppress(ConnectionError):  # reset or closed, but no second answer
            assert raw.recv(4096) == b""
    assert httpx.get(f"{stack.url}/health", verify=stack.trust(), timeout=PATIENCE_S).status_code == 200
    assert "Traceback" not in (stack.directory / ".evenflow" / "log" / "gateway.log").read_text()


def test_one_more_name_is_served_at_once_and_kept_by_the_next_start(stack: OverTls) -> None:
    authority = (stack.directory / AUTHORITY).read_bytes()
    command(stack, "certs", "dev", "--name", "evenflow.test")

    def known() -> bool:
        with socket.create_connection(("127.0.0.1", stack.port), PATIENCE_S) as raw:
            try:
                stack.trust().wrap_socket(raw, server_hostname="evenflow.test").close()
            except ssl.SSLCertVerificationError:
                return False
        return True

    until = time.monotonic() + PATIENCE_S
    while not known():
        assert time.monotonic() < until, "the gateway does not serve the new certificate"
        time.sleep(0.05)
    assert stack.stop() == 0
    stack.start()
    assert "TLS for localhost, 127.0.0.1, ::1, evenflow.test; clients" in stack.said()
    assert known()
    assert (stack.directory / AUTHORITY).read_bytes() == authority
