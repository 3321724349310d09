"""The collector of a process that serves."""

import subprocess
import sys

CHILD = """
import gc
from shared import heap
import gateway.serve
before = len(gc.get_objects())
heap.settle()
print(before, gc.get_freeze_count(), len(gc.get_objects()), gc.get_threshold()[0])
"""


def test_what_was_imported_is_not_looked_through_again():
    told = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=120, check=True).stdout
    before, frozen, left, young = map(int, told.split())
    assert frozen > 0.5 * before > 10_000
    assert left < 0.05 * before
    assert young > 700
