"""CSV that every reader reads alike, and in which no text becomes a formula."""

import csv
import io
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.usage_csv import lines


def test_lines_are_those_of_rfc_4180():
    assert lines([("a", 'b"c', "d,e", "f\ng"), (1, -2.5, None, date(2026, 3, 1))]) == (
        'a,"b""c","d,e","f\ng"\r\n1,-2.5,,2026-03-01\r\n'
    )


@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        " =1",
        "\xa0=1",
        "\ufeff=1",
        "\uff1d1",
        "\x00=1",
        "=cmd|' /C calc'!A0",
    ],
)
def test_a_text_that_could_be_a_formula_is_marked_as_text(text):
    [[cell]] = csv.reader(io.StringIO(lines([[text]]), newline=""))
    assert cell == "'" + text.replace("\0", "")


def test_numbers_and_harmless_texts_stay_as_they_are():
    assert lines([[-5, -0.5, "qwen2.5-7b", "a=b", "", None]]) == "-5,-0.5,qwen2.5-7b,a=b,,\r\n"


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=2, max_size=4)))
def test_what_was_written_is_read_again(table):
    read = list(csv.reader(io.StringIO(lines(table), newline="")))
    assert [[cell.removeprefix("'") for cell in row] for row in read] == [
        [cell.removeprefix("'") for cell in row] for row in table
    ]
