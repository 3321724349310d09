"""Gateways of others, to be measured beside ours: each in an environment of its own, made once from a hashed lock file.

A peer that cannot be had here is `UnavailableError`, with the reason; it costs its row of the table and nothing else.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.bench.processes import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / ".venv-bench"
INSTALL_S = 900.0


class UnavailableError(Exception):
    """This peer is not measured, and why. The text has no path of this machine in it."""


@dataclass(frozen=True)
class Command:
    """How a peer is started: its words, and what it needs in its environment."""

    words: list[str]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Peer:
    """One gateway. `command(bin, directory, port, upstream, key)` writes what it needs into `directory`."""

    name: str
    title: str
    package: str
    command: Callable[[Path, Path, int, str, str], Command]

    @property
    def lock(self) -> Path:
        return HERE / "locks" / f"{self.name}.txt"

    @property
    def version(self) -> str:
        """The pinned version of the package itself."""
        found = re.search(rf"^{self.package}==([^\s;\\]+)", self.lock.read_text(), re.MULTILINE)
        if found is None:
            raise UnavailableError(f"{self.lock.name} pins no {self.package}")
        return found[1]


def _litellm(binaries: Path, directory: Path, port: int, upstream: str, key: str) -> Command:
    """LiteLLM's proxy without a database: keys by its custom authentication, limits by what that returns."""
    shutil.copy(HERE / "litellm_auth.py", directory)
    config = directory / "litellm.yaml"
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_base": f"{upstream}/v1", "api_key": "x"},
        }
        for name in ("flood", "paced", "slow")
    ]
    settings = {
        "model_list": models,
        "litellm_settings": {"num_retries": 0, "request_timeout": 60, "set_verbose": False, "callbacks": []},
        "general_settings": {
            "master_key": "os.environ/LITELLM_MASTER_KEY",
            "custom_auth": "litellm_auth.user_api_key_auth",
        },
    }
    config.write_text(json.dumps(settings))  # JSON is YAML
    words = [str(binaries / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    env = {
        "EVENFLOW_BENCH_KEY": key,
        "LITELLM_MASTER_KEY": f"sk-{hashlib.sha256(key.encode()).hexdigest()}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # its price list is fetched from the network otherwise
        "LITELLM_LOG": "ERROR",
    }
    return Command([*words, "--num_workers", "1", "--telemetry", "False"], env)


def _smg(binaries: Path, directory: Path, port: int, upstream: str, key: str) -> Command:
    """SMG with a tenant's key, which it takes on its command line only; it is one for this run and this machine."""
    del directory
    words = [str(binaries / "smg"), "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", upstream]
    words += ["--backend", "openai", "--log-level", "error", "--tenant-api-key", f"demo:{key}"]
    return Command([*words, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())], {})


PEERS = {
    peer.name: peer
    for peer in (
        Peer("litellm", "LiteLLM proxy {version}, keys and limits", "litellm", _litellm),
        Peer("smg", "SMG {version} (Rust), tenant keys", "smg", _smg),
    )
}


def install(peer: Peer, say: Callable[[str], None]) -> Path:
    """The directory of the peer's programs; its environment is made anew only if the lock file changed.

    Raises UnavailableError.
    """
    directory = BUILD / peer.name
    digest = hashlib.sha256(peer.lock.read_bytes()).hexdigest()
    mark = directory / "installed"
    if mark.is_file() and mark.read_text() == digest:
        return directory / "bin"
    BUILD.mkdir(exist_ok=True)
    total = len(re.findall(r"^[a-z0-9][^ ]*==", peer.lock.read_text(), re.MULTILINE))
    say(f"{peer.name}: installing {peer.package} {peer.version} with {total - 1} others, once")
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(directory)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise UnavailableError(plain(f"no environment: {last_line(made.stderr or made.stdout)}"))
    _pip(peer, directory, total, say)
    mark.write_text(digest)
    return directory / "bin"


def _pip(peer: Peer, directory: Path, total: int, say: Callable[[str], None]) -> None:
    command = [str(directory / "bin" / "python"), "-m", "pip", "install", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--progress-bar", "off", "--disable-pip-version-check", "-r", str(peer.lock)]
    environment = {**os.environ, "PIP_NO_INPUT": "1"}
    seen, error = 0, ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        watchdog = threading.Timer(INSTALL_S, process.kill)
        watchdog.start()
        try:
            for line in process.stdout or ():
                if line.startswith("Collecting"):
                    seen += 1
                    if seen % 20 == 0:
                        say(f"{peer.name}: {seen} of at most {total} packages")
                elif line.startswith("ERROR"):
                    error = error or line
            status = process.wait()
        finally:
            watchdog.cancel()
            process.kill()
    if status < 0:
        raise UnavailableError(f"pip had not finished after {INSTALL_S:.0f} s")
    if status:
        raise UnavailableError(plain(f"pip: {last_line(error) or f'exit status {status}'}"))


def last_line(text: str) -> str:
    """The last line that says something; empty if none does."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def plain(text: str, limit: int = 200) -> str:
    """A message fit for a table that others read: one line, without this machine's directories and without bars."""
    text = re.sub(r"(?:/[\w.+@-]+)+/([\w.+@-]+)", r"\1", " ".join(text.split())).replace("|", "/")
    return text if len(text) <= limit else text[: limit - 1] + "…"
