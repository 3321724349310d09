"""Text on its way out of the process, to a reader that may go away or a disk that may be full: neither is our end."""

import contextlib
import os
from typing import TextIO


class Outlet:
    """A text stream whose writes never raise OSError: what cannot be written is dropped and counted in `dropped`.

    Python keeps what a failed flush left, tries it again at exit, and makes that the exit status (120). Where nobody
    reads any more (EPIPE, or EIO from a terminal that is gone), the descriptor is therefore pointed at the null device.
    """

    def __init__(self, stream: TextIO) -> None:
        self.dropped = 0
        self.gone = False
        self._stream = stream

    def write(self, text: str) -> None:
        """Write and flush."""
        if self.gone:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            self._abandon()
        except OSError:
            self.dropped += 1
            if self._stream.isatty():  # EIO: the terminal was closed
                self._abandon()

    def flush(self) -> None:
        """Nothing: every write has done so."""

    def close(self) -> None:
        """Close the stream."""
        with contextlib.suppress(OSError):
            self._stream.close()

    def _abandon(self) -> None:
        self.gone = True
        try:
            descriptor = self._stream.fileno()
            null = os.open(os.devnull, os.O_WRONLY)
        except OSError:  # not a file
            return
        os.dup2(null, descriptor)
        os.close(null)
