"""Every report is covered by tests that exist, or says where it will be."""

import re
from pathlib import Path

import pytest

from tests.docs.markdown import NODE, ROOT, named_tests, nodes, table

DOCUMENT = ROOT / "docs" / "field-reports.md"
PLANNED = re.compile(r"planned: ([a-z][a-z' ]+)")

# The reports themselves: a row that is dropped or renamed must be missed.
REPORTS = (
    "tabbyAPI 428", "tabbyAPI 106", "llama.cpp 27604", "Dynamo 14368", "vLLM 3574, 13087", "llama-cpp-python 372",
    "llama.cpp 19051", "LiteLLM 27823", "LiteLLM 34732", "LiteLLM 20256", "LiteLLM 14457", "LiteLLM 9820",
    "LiteLLM 34896", "Portkey 1797", "sub2api 1007", "open-webui docs 308", "Triton 7014", "vLLM 24885",
    "LiteLLM 35666", "Ollama 4967",
)  # fmt: skip
CLIENTS, LLAMACPP = 12, 13


def rows(path: Path = DOCUMENT) -> list[dict[str, str]]:
    return table(path.read_text(encoding="utf-8"), "report")


def faults(row: dict[str, str]) -> list[str]:
    """What is wrong with a row: an empty cell, a test that does not exist, nothing at all, or words of another form."""
    cell = row["covered by"]
    found = [f"{name} is empty" for name, text in row.items() if not text]
    found += [f"{file}::{name} does not exist" for file, name in nodes(cell) if name not in named_tests(file)]
    rest = NODE.sub("", PLANNED.sub("", cell))
    if rest.strip(" ,;"):
        found.append(f"neither a test nor a plan: {rest.strip(' ,;')!r}")
    if not NODE.search(cell) and not PLANNED.search(cell):
        found.append("neither test nor plan")
    return found


@pytest.mark.parametrize("row", rows(), ids=lambda row: re.sub(r"\W+", "-", row["report"]))
def test_each_report_is_covered_or_planned(row: dict[str, str]) -> None:
    assert faults(row) == []


def test_no_report_is_missing() -> None:
    told = [row["report"] for row in rows()]
    assert tuple(told[: len(REPORTS)]) == REPORTS
    assert len(told) == len(REPORTS) + CLIENTS + LLAMACPP
    assert len(set(told)) == len(told)


@pytest.mark.parametrize(
    ("cell", "fault"),
    [
        ("", "empty"),
        ("soon", "neither a test nor a plan"),
        ("planned: see 12", "neither a test nor a plan"),
        ("`tests/docs/test_field_reports.py::test_not_there`", "does not exist"),
        ("`tests/docs/test_not_there.py::test_x`", "does not exist"),
        ("tests/docs/test_field_reports.py::test_no_report_is_missing", "neither a test nor a plan"),
    ],
)
def test_a_bad_row_is_noticed(cell: str, fault: str) -> None:
    assert fault in "; ".join(faults({"report": "r", "covered by": cell}))


@pytest.mark.parametrize(
    "cell",
    [
        "`tests/docs/test_field_reports.py::test_no_report_is_missing`; planned: quotas",
        "`tests/docs/test_field_reports.py::test_a_bad_row_is_noticed[soon]`",
        "planned: tenants and quotas",
    ],
)
def test_a_good_row_passes(cell: str) -> None:
    assert faults({"report": "r", "covered by": cell}) == []
