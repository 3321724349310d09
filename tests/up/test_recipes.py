"""The printed lines work as they stand: run against a real TLS server, by Python and by curl."""

import json
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from gateway.up.authority import names_of
from gateway.up.recipes import recipes
from shared.errors import StartError


class Door(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        good = self.headers["authorization"] == "Bearer ef-k" and asked["model"] == "m" and asked["temperature"] == 0
        message = {"role": "assistant", "content": "hello" if good else "wrong"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps(
            {"id": "i", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", len(body))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def door(tmp_path):
    """Returns (port, certificate) of a server whose certificate is for the given names."""
    servers = []

    def start(*names):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        certificate = ""
        if names:
            made = trustme.CA().issue_cert(*names)
            certificate = tmp_path / "chain.pem"
            certificate.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
            made.private_key_pem.write_to_path(tmp_path / "tls-key.pem")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, tmp_path / "tls-key.pem")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return server.server_port, str(certificate)

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def printed(port, certificate, tmp_path):
    (tmp_path / "demo.key").write_text("ef-k\n")
    url = f"http{'s' if certificate else ''}://127.0.0.1:{port}"
    text = recipes(url, tmp_path / "demo.key", "m", certificate=certificate)
    _, shell, python = text.split(":\n\n")
    code = "\n".join(line[2:] for line in python.splitlines() if line.startswith("  "))
    return shell.partition("\nor from")[0], code, text


@pytest.mark.parametrize("names", [(), ("127.0.0.1",), ("localhost", "llm.example")])
def test_both_recipes_work(door, tmp_path, names):
    shell, code, text = printed(*door(*names), tmp_path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("hello\n", "")
    if shutil.which("curl"):
        done = subprocess.run(["bash", "-c", shell.strip()], capture_output=True, text=True, timeout=20, check=True)
        assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "hello"
    else:
        assert shlex.split(shell)[:2] == ["curl", "-N"]
    assert ("The certificate is for localhost, llm.example" in text) == (len(names) > 1)


def test_a_file_that_is_no_certificate_is_said(tmp_path):
    with pytest.raises(StartError, match="cannot be read as a certificate"):
        names_of(tmp_path / "gone.pem")
    (tmp_path / "bad.pem").write_text("nonsense")
    with pytest.raises(StartError, match=r"bad\.pem"):
        names_of(Path(tmp_path / "bad.pem"))
