"""Links lead somewhere, named code and tests exist, and nothing is said that belongs elsewhere."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.markdown import ROOT, anchors, definitions, documents, links, named_tests, names, nodes, table

DOCUMENTS = documents()
CODE = re.compile(r"`((?:gateway|workers|shared|infra)/[\w/.-]+\.py)(?:::(\w+))?`")
FOREIGN = {
    "a path of one machine": re.compile(r"(?<![\w.])/(?:work|root|home|tmp|opt|usr/local)/"),
    "an address to download from": re.compile(r"\b(?:files|registry|index|simple|mirror)\.[\w-]+\.(?:org|com|io)\b"),
    "how the work is organised": re.compile(
        r"\b(?:issue|ticket|PR|pull request)s? ?#?\d+\b|\bdesign document", re.IGNORECASE
    ),
    "something unfinished": re.compile(r"\b(?:TODO|FIXME|XXX|TBD)\b"),
}


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    broken = []
    for link in links(text):
        if urlsplit(link).scheme:
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        there = file.exists() and file.is_relative_to(ROOT)
        if not there or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_named_code_exists(path: Path) -> None:
    wrong = [
        f"{file}::{name}" if name else file
        for file, name in CODE.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / file).is_file() or (name and name not in definitions(file))
    ]
    assert not wrong


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_named_tests_exist(path: Path) -> None:
    assert [
        f"{file}::{name}" for file, name in nodes(path.read_text(encoding="utf-8")) if name not in named_tests(file)
    ] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_documents_speak_of_evenflow_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = {what: match[0] for what, pattern in FOREIGN.items() if (match := pattern.search(text))}
    assert not found


def test_every_row_of_the_readme_names_what_shows_it() -> None:
    rows = table((ROOT / "README.md").read_text(encoding="utf-8"), "what works")
    assert len(rows) > 10
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for row in rows:
        commands = re.findall(r"`make ([a-z-]+)`", row["shown by"])
        assert set(commands) <= targets, row
        assert commands or list(nodes(row["shown by"])), row


def test_what_the_checks_stand_on() -> None:
    """The checks can fail: each of them would see a fault of its kind."""
    assert links("[a](b.md) `x` ![c](d.svg)\n```\n[no](e.md)\n```\n") == ["b.md", "d.svg"]
    assert anchors("# One thing, two\n```\n# not\n```\n## `b` c") == {"one-thing-two", "b-c"}
    assert table("| k | v |\n|---|---|\n| a | b \\| c |\n\n| other | v |\n|---|---|\n| x | y |\n", "k") == [
        {"k": "a", "v": "b \\| c"}
    ]
    assert list(nodes("`tests/e2e/test_a.py::test_b[x-1]`")) == [("tests/e2e/test_a.py", "test_b")]
    assert list(nodes("`tests/a/test_a.py::TestC::test_b`")) == [("tests/a/test_a.py", "TestC::test_b")]
    assert "test_what_the_checks_stand_on" in named_tests("tests/docs/test_documents.py")
    assert "Node" in definitions("workers/node.py")
    assert "nothing" not in definitions("workers/node.py")
    for what, example in (
        ("a path of one machine", "see /home/me/x"),
        ("an address to download from", "files.example.org"),
        ("how the work is organised", "see issue 12"),
        ("something unfinished", "TODO later"),
    ):
        assert FOREIGN[what].search(example), what


def test_the_layers_name_every_module() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\w+", text.partition("\n## Layers\n")[2].partition("\nThe rules")[0]))
    for package in ("gateway", "workers", "shared"):
        rooms = {
            path.stem for path in (ROOT / package).iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"
        }
        rooms = {room for room in rooms if not room.startswith(("_", "settings_"))}  # parts of settings
        assert rooms - named == set(), package
