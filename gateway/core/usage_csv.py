"""Tables for spreadsheets: CSV as RFC 4180 has it, in which no text can become a formula. Pure."""

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Final

Cell = str | int | float | date | None

_FORMULA: Final = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")
"""What a formula begins with, in both widths."""
_IGNORED: Final = "\t\r\n \x0b\x0c\xa0\ufeff\u200b"
"""What a spreadsheet may skip before it looks."""


def lines(rows: Iterable[Sequence[Cell]]) -> str:
    """Rows as lines that end with CR LF; cells are quoted where they must be. `None` is empty."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows([_harmless(cell) for cell in row] for row in rows)
    return out.getvalue()


def _harmless(cell: Cell) -> str:
    """A text that a spreadsheet could take for a formula gets an apostrophe before it, which makes it a text."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        return str(cell)
    text = cell.replace("\0", "")
    dangerous = text[:1] in {"\t", "\r", "\n"} or text.lstrip(_IGNORED)[:1] in _FORMULA
    return "'" + text if dangerous and text else text
