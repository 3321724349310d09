"""The table of every setting in `docs/configuration.md`, made from the tree of settings itself.

    python -m shared.settings_reference docs/configuration.md

rewrites what stands between the two markers of that file; a test sees to it that this has been done.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec.inspect import StructType

from shared import settings
from shared.settings_schema import ROOT, Branch, describe, element, shown, variable

BEGIN = "<!-- settings: begin -->"
END = "<!-- settings: end -->"
UNITS = {"_s": "seconds", "_ms": "milliseconds", "_bytes": "bytes"}
HEAD = "| key | default | accepts | unit | what it does |\n| --- | --- | --- | --- | --- |"


def reference() -> str:
    """One Markdown table for each section, in the order of the tree."""
    return "\n\n".join(_tables(ROOT, "", "", _described()))


def rewrite(page: str) -> str:
    """A page with the tables between its markers renewed.

    Raises:
        ValueError: If a marker is missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def _described() -> dict[tuple[str, str], str]:
    """The string under each field, by class and field."""
    found = {}
    for node in ast.parse(inspect.getsource(settings)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, under in zip(node.body, node.body[1:], strict=False):
            match field, under:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[node.name, name] = " ".join(text.split())
    return found


def _tables(branch: Branch, title: str, prefix: str, described: dict[tuple[str, str], str]) -> Iterator[str]:
    lines, below = [], []
    for field in branch.fields:
        path, repeated = prefix + field.name, element(field.type)
        if repeated is not None:
            below += list(_tables(repeated, f"[[{path}]]", f"{path}.0.", described))
        elif isinstance(field.type, StructType):
            below += list(_tables(field.type, f"[{path.replace('.0.', '.')}]", path + ".", described))
        else:
            default = "(must be set)" if field.required else f"`{shown(field.type, field.default)}`"
            unit = next((unit for suffix, unit in UNITS.items() if field.name.endswith(suffix)), "")
            does = described[branch.cls.__name__, field.name]
            cells = (f"`{field.name}`", default, describe(field.type), unit, does)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    heading = f"### `{title}`\n\n" if title else "### Top level\n\n"
    about = f"{(branch.cls.__doc__ or '').strip()} First variable: `{variable(prefix + branch.fields[0].name)}`.\n\n"
    yield heading + (about if title else "") + "\n".join([HEAD, *lines])
    yield from below


def main(path: str) -> None:
    """Rewrite the page at `path`."""
    page = Path(path)
    page.write_text(rewrite(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
