"""Write the reference part of docs/wire.md from shared/wire.py and shared/subjects.py.

    python infra/docs/wire.py            writes docs/wire.md anew below its marker
    python infra/docs/wire.py --check    changes nothing; exit status 1 if the document and the code disagree

What stands above the marker is prose and is left alone.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "wire.md"
MARKER = "<!-- Below this line: made by `python infra/docs/wire.py`. Do not edit. -->\n"
SECTION = "# ------------------------------ "


def reference() -> str:
    """The generated part, from the code as it is."""
    return "\n".join([*_subjects(), *_unsent(), *_permissions(), *_messages()]).rstrip() + "\n"


def document(current: str) -> str:
    """The whole document: what stands above the marker in `current`, then the reference."""
    prose, found, _ = current.partition(MARKER)
    if not found:
        raise SystemExit(f"{DOCUMENT.name} has lost its marker: {MARKER.strip()}")
    return f"{prose}{MARKER}\n{reference()}"


def _subjects() -> Iterator[str]:
    sys.path.insert(0, str(ROOT))
    from shared import subjects  # noqa: PLC0415 - only once the path is set

    yield "## Subjects\n"
    yield f"Subjects start with `{subjects.PREFIX}.`; `{{gid}}` and `{{wid}}` name a gateway and a worker.\n"
    yield "| subject | published by | heard by | carries |"
    yield "|---|---|---|---|"
    for row in subjects.TABLE:
        carries = ", ".join(f"[`{name}`](#{name.lower()})" for name in row.carries.split(" | "))
        yield f"| `{subjects.PREFIX}.{row.pattern}` | {row.publisher} | {row.subscriber} | {carries} |"
    yield ""


def _unsent() -> Iterator[str]:
    """Messages that have their place but no sender yet, found by looking for who builds them."""
    tagged = {name for name, node in _classes() if _keywords(node).get("tag") is not None}
    built = set()
    for room in ("gateway", "workers", "shared"):
        for path in sorted((ROOT / room).rglob("*.py")):
            built |= set(_built(ast.parse(path.read_text(encoding="utf-8"))))
    unsent = [name for name, _ in _classes() if name in tagged - built]
    if unsent:
        yield "Defined, but sent by no part of this release: " + ", ".join(f"`{name}`" for name in unsent) + ".\n"


def _built(tree: ast.Module) -> Iterator[str]:
    """Names of `shared.wire` that a module calls, whichever way it imported them."""
    names = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "shared.wire"
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) if name in names:
                    yield names[name]
                case ast.Attribute(value=ast.Name(id="wire"), attr=name):
                    yield name


def _permissions() -> Iterator[str]:
    """The server's allow lists for an identity of each kind, as `shared.permissions` makes them."""
    from shared.permissions import permissions  # noqa: PLC0415 - only once the path is set

    yield "## Permissions\n"
    yield "What the NATS server lets an identity do; it refuses everything else. `*` stands for one name of any kind.\n"
    yield "| identity | may publish on | may subscribe to |"
    yield "|---|---|---|"
    for kind, name in (("gateway", "{gid}"), ("worker", "{wid}"), ("provision", "provision")):
        allowed = permissions(kind, name)
        lists = ("<br>".join(f"`{subject}`" for subject in each) for each in (allowed.publish, allowed.subscribe))
        yield f"| {kind}{'' if kind == name else f' `{name}`'} | {' | '.join(lists)} |"
    yield ""


def _messages() -> Iterator[str]:
    lines = (ROOT / "shared" / "wire.py").read_text(encoding="utf-8").splitlines()
    headings = {number: line.removeprefix(SECTION) for number, line in enumerate(lines, 1) if line.startswith(SECTION)}
    for name, node in _classes():
        for number in [number for number in headings if number < node.lineno]:
            yield f"## {headings.pop(number).capitalize()}\n"
        yield f"### {name}\n"
        yield inspect.cleandoc(ast.get_docstring(node) or "") + "\n"
        tag = _keywords(node).get("tag")
        yield "| place | field | type | default |"
        yield "|---|---|---|---|"
        start = 0
        if tag is not None:
            yield f"| 0 | | always `{ast.unparse(tag)}` | |"
            start = 1
        for place, field in enumerate(_fields(node), start):
            default = "" if field.value is None else f"`{_cell(ast.unparse(field.value))}`"
            yield f"| {place} | `{ast.unparse(field.target)}` | `{_type(field.annotation)}` | {default} |"
        yield ""
    yield "## Names for types\n"
    yield "| name | is |"
    yield "|---|---|"
    for name, value in _aliases():
        yield f"| `{name}` | `{_type(value)}` |"


def _tree() -> ast.Module:
    return ast.parse((ROOT / "shared" / "wire.py").read_text(encoding="utf-8"))


def _classes() -> list[tuple[str, ast.ClassDef]]:
    return [
        (node.name, node) for node in _tree().body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [item for item in node.body if isinstance(item, ast.AnnAssign)]


def _keywords(node: ast.ClassDef) -> dict[str | None, ast.expr]:
    return {keyword.arg: keyword.value for keyword in node.keywords}


def _aliases() -> Iterator[tuple[str, ast.expr]]:
    """Unions and literals at the top level of the module."""
    for node in _tree().body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp() as value):
                yield name, value


def _type(node: ast.expr) -> str:
    return _cell(ast.unparse(node).replace("'", '"'))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write, or check."""
    current = DOCUMENT.read_text(encoding="utf-8")
    wanted = document(current)
    if "--check" in sys.argv[1:]:
        if wanted != current:
            print(f"{DOCUMENT.name} is not what the code says: run python infra/docs/wire.py", file=sys.stderr)
        return int(wanted != current)
    DOCUMENT.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
