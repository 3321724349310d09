"""What a person at the terminal reads: one line per event, one moving line while waiting."""

import os
from typing import TextIO

from shared.outlet import Outlet

_EVERY_S = 5.0


class Terminal:
    """Writes to `out`. A reader that went away (`evenflow up | head`) silences it and harms nothing else."""

    def __init__(self, out: TextIO) -> None:
        self._out = Outlet(out)
        self._stream = out
        self._moves = out.isatty()
        self._waiting = ""
        self._told_s = 0.0

    def line(self, text: str) -> None:
        """Print one line, below what is being waited for."""
        self._out.write(f"{self._wipe()}{text}\n")

    def piece(self, text: str) -> None:
        """Print a piece of a line: tokens of an answer as they come. Control characters are shown, not obeyed."""
        shown = "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
        self._out.write(self._wipe() + shown)

    def wait(self, what: str, waited_s: float) -> None:
        """Show that `what` is being waited for: in place on a terminal; else at a change and every five seconds."""
        if self._moves:
            self._waiting = what
            self._out.write(f"\r\x1b[2K{f'... {what} ({waited_s:.0f} s)'[: _columns(self._stream) - 1]}")
        elif what != self._waiting or waited_s - self._told_s >= _EVERY_S:
            self._waiting, self._told_s = what, waited_s
            self._out.write(f"... {what} ({waited_s:.0f} s)\n")

    def clear(self) -> None:
        """Take the moving line away: what comes next goes elsewhere."""
        self._out.write(self._wipe())

    def _wipe(self) -> str:
        """Return what clears the moving line, if one is shown."""
        shown, self._waiting = self._waiting, ""
        return "\r\x1b[2K" if shown and self._moves else ""


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
