"""The tables say what the raw lines say."""

import json
import random
from pathlib import Path

import pytest

from infra.bench.table import Run, number, put_into, read, render, spread, verdict

SAMPLE = Path(__file__).with_name("sample.jsonl")


@pytest.fixture(scope="module")
def records():
    return read(SAMPLE)


def rows(text: str, first: str) -> list[str]:
    """The cells of the row that starts with `first`."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_recorded_run_becomes_its_tables(records):
    """The sample is two rounds, in round figures: medians lie between them, ratios are taken within each."""
    text = render(records)
    ours = rows(text, "**Evenflow")
    assert ours[1:] == [
        "1,500",
        "2.00 / 5.00",
        "50,000",
        "12.5",
        "80.0",
        "50.0",
        "30.0",
        "3.00 / 6.00",
        "92 / 98 / 123",
    ]
    assert rows(text, "LiteLLM")[1:] == [
        "60",
        "19.0 / 24.0",
        "1,000",
        "800",
        "1,200",
        "-",
        "-",
        "22.0 / 27.0",
        "347 / 400 / -",
    ]
    assert rows(text, "floor: bare")[1:] == ["-", "-", "80,000", "8.00", "40.0", "30.0", "20.0", "-", "51 / 53 / -"]
    assert rows(text, "Broken")[1] == "not measured: pip: ERROR: no such thing"
    assert rows(text, "whole answers/s on")[1:] == [
        "1,500, by CPU 2,000",
        "0.50x (0.40 to 0.60) of SMG",
        "1,500 / 3,000",
        "reach (by CPU)",
    ]
    assert rows(text, "chunks/s on")[1:] == [
        "50,000, by CPU 80,000",
        "1.25x (1.00 to 1.50) of SMG",
        "70,000 / 150,000",
        "reach (by CPU)",
    ]
    assert rows(text, "CPU per token, 16")[1:] == [
        "80.0 µs, 2.00x (1.75 to 2.25) of bare ASGI",
        "1.33x (1.17 to 1.50) of SMG",
        "1.5x, below SMG / 1.2x",
        "**missed**",
    ]
    assert rows(text, "CPU per token, 500")[1:] == [
        "30.0 µs, 1.50x of bare ASGI",
        "1.20x of SMG",
        "1.5x, below SMG / 1.2x",
        "**missed**",
    ]
    assert rows(text, "added latency")[1:] == [
        "1.25 (1.00 to 1.50) / 3.00 (2.00 to 4.00)",
        "the floor taken off",
        "2.5, 6 / 1.5, 3",
        "aim",
    ]
    assert rows(text, "first chunk")[1:] == ["3.00 / 6.00", "SMG 1.00 / 2.00", "3, 6 / 2, 4", "reach"]
    assert rows(text, "MB idle /")[4] == "reach"
    assert rows(text, "cold")[1] == "4.1"
    assert "- litellm, paced 128: not asked: 15 s of CPU for 2 s of streams" in text
    assert "- litellm, ttfc: 4 streams/s or so instead of 10" in text
    assert "Work of others took 3 % of both cores" in text


def test_the_order_of_the_lines_does_not_matter(records):
    mixed = records[:]
    random.Random(7).shuffle(mixed)
    shown = {line for line in render(mixed).splitlines() if not line.startswith("|  |")}
    assert shown == {line for line in render(records).splitlines() if not line.startswith("|  |")}


def test_rounds_with_errors_are_no_figures_and_are_told(records):
    spoiled = [
        {**record, "per_s": 1e9, "errors": {"HTTP 500": 2}}
        if (record.get("system"), record["mode"], record.get("round")) == ("evenflow", "sat", 1)
        else record
        for record in records
    ]
    run = Run(spoiled)
    assert run.rounds("evenflow", "sat", 32, "per_s").keys() == {2}
    assert "- evenflow, sat 32: HTTP 500" in render(spoiled)


def test_without_the_peer_the_floor_alone_decides(records):
    text = render([record for record in records if record.get("system") != "smg"])
    assert rows(text, "CPU per token, 500")[2:] == ["- of SMG", "1.5x, below SMG / 1.2x", "reach"]


def test_what_was_not_measured_is_not_made_up(records):
    alone = [
        record
        for record in records
        if record.get("system") in {None, "evenflow"} and record["mode"] in {"meta", "start"}
    ]
    text = render(alone)
    assert rows(text, "**Evenflow")[1:-1] == ["-"] * 8
    assert rows(text, "CPU per token, 16")[4] == "not measured"
    assert rows(text, "cold")[4] == "not measured"


@pytest.mark.parametrize(
    ("values", "most", "word"),
    [
        ([1.0, 1.0], True, "aim"),
        ([1.2, 1.0], True, "aim"),
        ([1.21, 1.0], True, "reach"),
        ([1.2, 2.1], True, "**missed**"),
        ([5.0, 5.0], False, "aim"),
        ([1.2, 1.0], False, "**missed**"),
        ([1.5, 2.0], False, "reach"),
        ([1.0, None], True, "not measured"),
    ],
)
def test_a_budget_is_kept_by_its_worst_value(values, most, word):
    reach, aim = ([1.5, 2.0], [1.2, 2.0]) if most else ([1.5, 2.0], [3.0, 3.0])
    assert verdict(values, reach, aim, most=most) == word


def test_figures():
    assert [number(value) for value in (None, 0.0, 1.234, 12.34, 123.4, 12345.6)] == [
        "-",
        "0.00",
        "1.23",
        "12.3",
        "123",
        "12,346",
    ]
    assert spread([]) == "-"
    assert spread([2.0]) == "2.00"
    assert spread([1.0, 2.0, 9.0], 1, "x") == "2.0x (1.0 to 9.0)"


def test_tables_go_between_the_marks_again_and_again():
    document = "before\n<!-- bench: none -->\nold\n<!-- bench: end -->\nafter\n"
    once = put_into(document, "a.jsonl", "| new |\n")
    assert once == "before\n<!-- bench: a.jsonl -->\n| new |\n<!-- bench: end -->\nafter\n"
    assert put_into(once, "b.jsonl", "\\1\n") == once.replace("a.jsonl", "b.jsonl").replace("| new |", "\\1")
    with pytest.raises(ValueError, match="no marks"):
        put_into("nothing", "a.jsonl", "")


def test_a_line_that_is_none_is_refused(tmp_path):
    broken = tmp_path / "x.jsonl"
    broken.write_text('{"mode": "meta"}\n\n{"mode"')
    with pytest.raises(json.JSONDecodeError):
        read(broken)
