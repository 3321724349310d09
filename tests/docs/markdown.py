"""What the checks of the documents share: Markdown taken apart, and the names that Python files hold."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[2]
NODE = re.compile(r"`(tests/[\w/.-]+\.py)::((?:\w+::)?\w+)(?:\[[^\]`]*\])?`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_CELL = re.compile(r"(?<!\\)\|")


def documents() -> list[Path]:
    """Every document that a reader may open."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def names(paths: list[Path]) -> list[str]:
    """Short ids for parametrised tests."""
    return [str(path.relative_to(ROOT)) for path in paths]


def links(text: str) -> list[str]:
    """Targets of links and images, those inside code left out."""
    return _LINK.findall(_FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """What `#...` may name: headings as GitHub slugs them."""
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in _HEADING.findall(_FENCE.sub("", text)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


def table(text: str, first: str) -> list[dict[str, str]]:
    """Rows of every table whose first column is headed `first`, by column name."""
    rows: list[dict[str, str]] = []
    header: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            header = None
            continue
        cells = [cell.strip() for cell in _CELL.split(line.strip().strip("|"))]
        if header is None:
            header = cells if cells[0] == first else []
        elif header and not set("".join(cells)) <= set("-: "):
            assert len(cells) == len(header), f"{len(cells)} cells under {len(header)} headings: {line}"
            rows.append(dict(zip(header, cells, strict=True)))
    return rows


def nodes(text: str) -> Iterator[tuple[str, str]]:
    """Named tests: (file, function), parameters stripped."""
    yield from NODE.findall(text)


@cache
def named_tests(path: str) -> frozenset[str]:
    """The tests that pytest would collect from a file, those of classes as `Class::test`; empty if there is no file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found |= {f"{node.name}::{item.name}" for item in node.body if _is_test(item)}
        elif _is_test(node):
            found.add(node.name)
    return frozenset(found)


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")


@cache
def definitions(path: str) -> frozenset[str]:
    """Everything that a Python file defines by name: functions, classes, methods, assigned names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
    return frozenset(found)
