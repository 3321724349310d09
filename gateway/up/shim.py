"""Become another program that dies with its parent: `python -I -S shim.py PARENT COMMAND...` (Linux).

Run as a script, before anything of Evenflow is imported. Doing this between fork and exec (`preexec_fn`) would run
Python in the copy of a process that may have threads, where a lock held by another thread is never released.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
EX_UNAVAILABLE = 69


def main(parent: int, command: list[str]) -> None:
    """Ask for SIGTERM when process `parent` ends, then replace this process with `command`.

    The wish survives `execve` (prctl(2)). A parent that ended before it was uttered is noticed by `getppid`.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.exit(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit(EX_UNAVAILABLE)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
