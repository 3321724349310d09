"""Makes an SQLite database unusable for everybody else, for as long as it runs: `python outage.py FILE FIRST COUNT`.

It holds locks that SQLite itself takes in the shared memory of a database in WAL mode (bytes 120 to 127 of `FILE-shm`:
writer, checkpoint, recovery, readers), as a process would that hangs in the middle of a transaction. Like every
connection, it shares a lock of the file, or whoever closes the last other one would remove the shared memory.
"""

import contextlib
import fcntl
import subprocess
import sys
import time
from pathlib import Path

SHARED_FIRST, SHARED_SIZE = 0x40000002, 510
WRITING = (120, 1)
"""Nobody can write; who tries is told so after the busy timeout."""
ALL = (120, 8)
"""Nobody can read either; who tries is told so after 10 s, whatever the busy timeout."""


def hold(file, first, count):
    """Take the locks, say so, and keep them until standard input ends."""
    with Path(file).open("rb") as itself, Path(f"{file}-shm").open("r+b") as shared:
        fcntl.lockf(itself, fcntl.LOCK_SH, SHARED_SIZE, SHARED_FIRST)
        while True:
            try:
                fcntl.lockf(shared, fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
                break
            except BlockingIOError:
                time.sleep(0.001)  # somebody is in a transaction
        print("held", flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def outage(file, which=ALL):
    """The database is away meanwhile."""
    command = [sys.executable, __file__, str(file), *map(str, which)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.stdin.close()
        holder.wait(20)
        holder.stdout.close()


if __name__ == "__main__":
    hold(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
