"""The document's figures are those of the raw lines that it names."""

import json
import re

import pytest

from infra.bench.peers import PEERS
from infra.bench.run import plan
from infra.bench.table import MARKS, Run, put_into, read, render
from tests.docs.markdown import ROOT

DOCUMENT = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
RESULTS = ROOT / "infra" / "bench" / "results"
NAMED = MARKS.search(DOCUMENT)


@pytest.fixture(scope="module")
def records():
    assert NAMED is not None
    return read(RESULTS / NAMED[2])


def test_the_tables_are_made_from_the_raw_lines(records):
    assert put_into(DOCUMENT, NAMED[2], render(records)) == DOCUMENT


def test_no_results_lie_about_that_no_document_quotes():
    assert [path.name for path in RESULTS.iterdir()] == [NAMED[2]]


def test_the_run_that_is_quoted_was_whole(records):
    """Every system, every load, every round, and no error of ours."""
    run = Run(records)
    started = {record["system"]: record for record in records if record["mode"] == "start"}
    assert started.keys() == {"evenflow", "litestar", "bare", *PEERS}
    for name, record in started.items():
        assert not record["errors"], name
        assert record["wrong_key"] == (200 if name == "bare" else 401), name
    ours = [record for record in records if record.get("system") in {"evenflow", "litestar", "bare"}]
    assert [record for record in ours if record["errors"]] == []
    for step in plan(1.0):
        field = "rss_mb" if step.mode == "hold" else "cpu_us"
        rounds = 1 if step.last_round else run.meta["rounds"]
        assert len(run.rounds("evenflow", step.mode, step.c, field)) == rounds, step


def test_raw_lines_tell_of_no_machine(records):
    text = json.dumps(records)
    assert re.findall(r"(?<![\w/])/(?!s\b)[\w.]+/", text) == []
    assert re.findall(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|https?://|localhost", text) == []
