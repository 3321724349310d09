"""What is written when nobody can take it."""

import contextlib
import io
import os
import subprocess
import sys

import pytest

from shared.outlet import Outlet

CHILD = """
import sys
from shared.outlet import Outlet
out = Outlet(sys.stdout) if sys.argv[1] == "outlet" else sys.stdout
out.write("first\\n"); out.flush()
sys.stdin.readline()
for _ in range(3):
    out.write("nobody reads this\\n")
"""


@pytest.mark.parametrize(("how", "status"), [("outlet", 0), ("plain", 120)])  # the second one is the control
def test_a_reader_that_went_away_leaves_no_trace_in_the_exit_status(how, status):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    assert child.stdout.readline() == "first\n"
    child.stdout.close()
    child.communicate("go\n", timeout=60)
    assert child.returncode == status


def test_a_full_disk_loses_lines_and_raises_nothing():
    full = open("/dev/full", "w", encoding="utf-8")  # noqa: PTH123, SIM115 -- closing it raises, too
    outlet = Outlet(full)
    outlet.write("lost\n")
    outlet.write("lost\n")
    assert outlet.dropped == 2
    assert not outlet.gone, "there may be room again"
    with contextlib.suppress(OSError):
        full.close()


def test_what_can_be_written_is_written_at_once():
    stream = io.StringIO()
    Outlet(stream).write("a line\n")
    assert stream.getvalue() == "a line\n"
