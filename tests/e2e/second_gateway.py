"""One more real gateway beside a running stack: its own process and ports, the stack's NATS and store."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx

from gateway.up import identities
from tests.e2e.stack import ROOT, UP_S, Stack


class Beside(Stack):
    """The second gateway, for clients of a stack: `url`, `port`, `key` and `headers` are as there."""

    def __init__(self, stack: Stack, name: str) -> None:
        super().__init__(stack.directory)
        self.name = name
        self.settings = stack.settings

    def start(self) -> "Beside":
        directory = self.directory / ".evenflow" / "nats"
        if not (directory / "identities" / f"gateway-{self.name}").exists():
            identities.add(directory, "gateway", self.name)
            assert identities.reload(directory), "the server does not run"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
        environ |= {f"EVENFLOW_{name.upper()}": value for name, value in self.settings.items()}
        environ |= {
            "EVENFLOW_GATEWAY__NAME": self.name,
            "EVENFLOW_GATEWAY__PORT": str(self.port),
            "EVENFLOW_ADMIN__PORT": str(self.admin_port),
            "EVENFLOW_NATS__URL": f"nats://127.0.0.1:{(directory / 'port').read_text().strip()}",
            "EVENFLOW_NATS__IDENTITIES": str(directory / "identities"),
            "PYTHONPATH": str(ROOT),
        }
        with (self.directory / f"{self.name}.out").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "gateway"],
                cwd=self.directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + UP_S
        while time.monotonic() < until:
            assert self.process.poll() is None, (self.directory / f"{self.name}.out").read_text()
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.admin}/ready", timeout=2).status_code == 200:
                    return self
            time.sleep(0.05)
        self.process.send_signal(signal.SIGKILL)
        raise AssertionError(f"{self.name} was not ready:\n{(self.directory / f'{self.name}.out').read_text()}")


@contextlib.contextmanager
def beside(stack: Stack, name: str = "g2") -> Iterator[Beside]:
    one = Beside(stack, name)
    try:
        yield one.start()
    finally:
        if one.process is not None:
            one.stop()
