"""Keep what `make prove` found: docs/proof.jsonl, a line a test, and docs/proof.md, made from it.

    python infra/docs/proof.py build/prove.xml    takes the tests of a run (pytest's JUnit file) into both
    python infra/docs/proof.py --check            changes nothing; exit status 1 if the two disagree

A test that ran again replaces its line: each one says when, and on which commit, it ran last, and what it said.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "proof.jsonl"
DOCUMENT = ROOT / "docs" / "proof.md"
PROSE = """\
# Proof

What `make prove` found when it ran last: the kills, soaks and outages of `make test` at full count and length. Made by
`infra/docs/proof.py` from [proof.jsonl](proof.jsonl); do not edit. A figure is worth what its machine is: each line
says how many cores there were, and nothing here is compared with anything of another run.
"""
PLACES = re.compile(rf"({re.escape(str(ROOT))}|{re.escape(tempfile.gettempdir())}/pytest-of-[^/\s]+/pytest-\d+)")
LONGEST = 6_000
PROVING = ("tests/chaos/", "tests/protocol/", "tests/core/test_quotas")


def taken(report: Path, commit: str) -> list[dict[str, Any]]:
    """The tests of one run, as results: those that say something, those of the rooms that prove, those that failed."""
    found = []
    for case in ET.parse(report).getroot().iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped") is not None
        found.append(
            {
                "test": f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}",
                "outcome": "failed" if bad else "skipped" if skipped else "passed",
                "seconds": round(float(case.get("time", 0)), 1),
                "day": datetime.now(UTC).strftime("%Y-%m-%d"),
                "commit": commit,
                "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
                "said": said(case.findtext("system-out") or ""),
            }
        )
    return [one for one in found if one["said"] or one["outcome"] == "failed" or one["test"].startswith(PROVING)]


def said(text: str) -> str:
    """What a test printed, without what is the machine's own."""
    kept = PLACES.sub("…", re.sub(r"^-+ Captured .* -+$", "", text, flags=re.MULTILINE)).strip("\n")
    return kept if len(kept) <= LONGEST else kept[:LONGEST] + "\n…"


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both, newer ones in place of older ones, by name."""
    by_name = {result["test"]: result for result in [*old, *new]}
    return [by_name[name] for name in sorted(by_name)]


def document(results: list[dict[str, Any]]) -> str:
    """The page."""
    parts = [PROSE, "| test | outcome | seconds | day | commit | machine |\n|---|---|---|---|---|---|"]
    for result in results:
        name, *cells = (result[column] for column in ("test", "outcome", "seconds", "day", "commit", "machine"))
        parts.append(f"| `{name.removeprefix('tests/')}` | {' | '.join(map(str, cells))} |")
    parts += [
        f"\n## {result['test'].removeprefix('tests/')}\n\n```\n{result['said']}\n```"
        for result in results
        if result["said"]
    ]
    return "\n".join(parts) + "\n"


def read() -> list[dict[str, Any]]:
    """What is kept."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        return int(DOCUMENT.read_text() != document(read()))
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    results = merged(read(), taken(Path(sys.argv[1]), commit))
    RESULTS.write_text("".join(json.dumps(result, ensure_ascii=False) + "\n" for result in results))
    DOCUMENT.write_text(document(results))
    failed = sum(result["outcome"] == "failed" for result in results)
    print(f"{len(results)} tests in {DOCUMENT.relative_to(ROOT)}, {failed} of them failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
