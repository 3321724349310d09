"""A PostgreSQL of the tests' own: made in a directory of its own, on the loopback, gone with the tests.

Tests take it through the fixtures of `tests/conftest.py`: `store_url` gives every test that takes it an empty database
twice, once of SQLite and once of PostgreSQL; `postgres` is the server itself, for tests that do something to it.

Without PostgreSQL on the machine those tests are skipped. With `EVENFLOW_TEST_POSTGRES=1`, as `make test-postgres`
and CI set it, they fail instead; with `EVENFLOW_TEST_POSTGRES=0` they are skipped wherever they run.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gateway.up.files import free_port

HOST = "127.0.0.1"
ROLE, PASSWORD = "evenflow", "secret/of the+tests"
OWNER, OWNER_PASSWORD = "postgres", "owner"
PROGRAMS = ("postgres", "initdb", "psql")
START_S = 60.0
STOP_S = 30.0
STATEMENT_S = 60.0
OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "autovacuum": "off",  # it would hold the template
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_connections": "90",
    "shared_buffers": "16MB",
    "jit": "off",
    "listen_addresses": HOST,
    "log_line_prefix": "%m [%p] %q%a ",
}


def programs() -> Path | None:
    """The directory of PostgreSQL's server programs, the newest first; `None` without them."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    on_path = [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    for directory in (*debian, *on_path):
        if all((directory / name).exists() for name in PROGRAMS):
            return directory
    return None


class Cluster:
    """One server; `url` of a database is what `store.url` takes, of a role that owns it and nothing else."""

    def __init__(self, bin_directory: Path) -> None:
        self.bin = bin_directory
        # Not pytest's directory: the path of a socket has at most 107 characters, and another user must reach it.
        self.directory = Path(tempfile.mkdtemp(prefix="evenflow-pg-"))
        self.port = free_port(HOST)
        self.process: subprocess.Popen[bytes] | None = None
        self._user = _other_user() if os.geteuid() == 0 else None
        self._made = 0
        self._template = ""

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def make(self) -> "Cluster":
        """initdb, start, and the role."""
        secret = self.directory / "password"
        secret.write_text(OWNER_PASSWORD)
        if self._user is not None:
            for path in (self.directory, secret):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
        made = subprocess.run(
            [
                self.bin / "initdb", "--pgdata", self.directory / "data", "--username", OWNER, "--pwfile", secret,
                "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync",
            ],
            **self._as_user(), capture_output=True, text=True, timeout=START_S, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr
        self.start()
        self.sql(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")
        return self

    def start(self) -> None:
        """Start, and wait until it answers. It stops when the thread that called this ends: not one of a pool."""
        options = {**OPTIONS, "unix_socket_directories": str(self.directory), "port": str(self.port)}
        # A fast stop when the tests die, however they do.
        command = ["setpriv", "--pdeathsig", "INT", str(self.bin / "postgres"), "-D", str(self.directory / "data")]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, **self._as_user(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until = time.monotonic() + START_S
        while self._psql("SELECT 1", "postgres").returncode:
            assert self.process.poll() is None, f"postgres ended with {self.process.returncode}:\n{self.said()}"
            assert time.monotonic() < until, f"postgres was not there within {START_S:.0f} s:\n{self.said()}"
            time.sleep(0.05)

    def stop(self, *, killed: bool = False) -> None:
        """End every session at once; `killed` as after a crash."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGQUIT if killed else signal.SIGINT)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)
            raise

    def remove(self) -> None:
        """Stop, and leave nothing behind."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """A server that takes connections and never says a word, as one whose machine hangs."""
        assert self.process is not None
        pids = [self.process.pid]
        os.kill(self.process.pid, signal.SIGSTOP)  # first: it starts no more children
        try:
            for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGSTOP)
                    pids.append(int(child))
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def database(self, *, empty: bool = False) -> Iterator[str]:
        """The URL of a new database, with empty tables or `empty` of all; dropped at the end whoever is still in it."""
        self._made += 1
        name = f"evenflow_{self._made}"
        template = "template0" if empty else self._with_tables()
        self.sql(f"CREATE DATABASE {name} OWNER {ROLE} TEMPLATE {template}")
        try:
            yield self.url(name)
        finally:
            if self.process is not None and self.process.poll() is None:
                self.sql(f"DROP DATABASE {name} WITH (FORCE)")

    def _with_tables(self) -> str:
        """The database that others are copied from, which is faster than making tables for each test."""
        if not self._template:
            self.sql(f"CREATE DATABASE evenflow_template OWNER {ROLE} TEMPLATE template0")
            # In a process of its own: whoever needs a database may be within a running loop.
            program = "import sys; from tests.store.raw import make; make(sys.argv[1])"
            subprocess.run(
                [sys.executable, "-c", program, self.url("evenflow_template")],
                cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, check=True, timeout=START_S,
            )  # fmt: skip
            self._template = "evenflow_template"
        return self._template

    def url(self, database: str) -> str:
        password = PASSWORD.replace("/", "%2F").replace(" ", "%20").replace("+", "%2B")
        return f"postgresql+asyncpg://{ROLE}:{password}@{HOST}:{self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> list[str]:
        """Run one statement as the server's owner; its rows as text, columns divided by `|`."""
        done = self._psql(statement, database)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def said(self) -> str:
        """The end of the server's log."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def _psql(self, statement: str, database: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                str(self.bin / "psql"), "-h", HOST, "-p", str(self.port), "-U", OWNER, "-d", database, "-w", "-X", "-q",
                "-t", "-A", "-v", "ON_ERROR_STOP=1", "-c", statement,
            ],
            env={"PGPASSWORD": OWNER_PASSWORD, "PGCONNECT_TIMEOUT": "10", "PATH": os.environ.get("PATH", "")},
            capture_output=True, text=True, timeout=STATEMENT_S, check=False,
        )  # fmt: skip

    def _as_user(self) -> dict[str, object]:
        # PostgreSQL refuses to run as root.
        place = {"cwd": self.directory}
        if self._user is None:
            return place
        return {**place, "user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def name_of(url: str) -> str:
    """The database of a URL."""
    return url.rpartition("/")[2]


def _other_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise AssertionError("PostgreSQL refuses root, and there is neither a user postgres nor a user nobody")
