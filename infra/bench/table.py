"""Make the tables of docs/benchmarks.md from the raw lines of a run.

    python -m infra.bench.table infra/bench/results/DATE.jsonl            # print them
    python -m infra.bench.table FILE --into docs/benchmarks.md            # put them between the document's marks

A figure is the median of its rounds. Ratios and differences are taken within each round, where both sides met the same
machine, and then their median; in brackets stand the least and the most.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
MARKS = re.compile(r"(<!-- bench: )(\S+)( -->\n).*?(<!-- bench: end -->)", re.DOTALL)
PACED = (16, 128, 500)
HELD = 1000
FIRST_RATE = 10.0
COLUMNS = (
    "",
    "whole answers/s",
    "at 20/s, p50 / p99 ms",
    "chunks/s, 16 streams",
    "CPU µs/chunk, flood",
    *(f"paced, {count}" for count in PACED),
    "first chunk, p50 / p99 ms",
    f"MB idle / after the floods / {HELD:,} open",
)


def read(path: Path) -> list[Record]:
    """The records of a run, one a line. Raises ValueError for a line that is none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


class Run:
    """The records of one run, looked up by system, mode and number of streams; those with errors are no figures."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.meta = next(record for record in records if record["mode"] == "meta")

    def rounds(self, system: str, mode: str, c: int, field: str) -> dict[int, float]:
        """One field of every good round, by round."""
        return {
            record.get("round", 0): record[field]
            for record in self.records
            if (record.get("system"), record["mode"], record.get("c", 0)) == (system, mode, c)
            and not record.get("errors")
            and record.get(field) is not None
        }

    def median(self, system: str, mode: str, c: int, field: str) -> float | None:
        values = self.rounds(system, mode, c, field).values()
        return statistics.median(values) if values else None

    def against(self, other: str, mode: str, c: int, field: str, how: Callable[[float, float], float]) -> list[float]:
        """`how(ours, theirs)` of every round that has both, sorted."""
        ours, theirs = (self.rounds(system, mode, c, field) for system in ("evenflow", other))
        return sorted(how(ours[number], theirs[number]) for number in ours.keys() & theirs.keys())


def number(value: float | None, digits: int | None = None) -> str:
    """Thousands with commas; below 100 as many decimals as make three digits, or `digits`; a dash for none."""
    if value is None:
        return "-"
    if digits is None:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def several(values: Sequence[float | None], digits: int | None = None) -> str:
    """Figures side by side; one dash if there are none at all."""
    return " / ".join(number(value, digits) for value in values) if any(value is not None for value in values) else "-"


def spread(values: list[float], digits: int = 2, unit: str = "") -> str:
    """The median and, where they differ, the least and the most of sorted values."""
    if not values:
        return "-"
    middle = number(statistics.median(values), digits) + unit
    return (
        middle if values[0] == values[-1] else f"{middle} ({number(values[0], digits)} to {number(values[-1], digits)})"
    )


def beside(run: Run) -> list[list[str]]:
    """A row for each system, in the order in which they started."""
    rows = []
    for start in (record for record in run.records if record["mode"] == "start"):
        system = start["system"]
        if start["errors"]:
            reason = "; ".join(start["errors"])
            rows.append([start["title"], f"not measured: {reason}", *[""] * (len(COLUMNS) - 2)])
            continue

        def pair(mode: str, system: str = system) -> str:
            return several([run.median(system, mode, 0, field) for field in ("p50_ms", "p99_ms")])

        memory = (
            start["rss_mb"],
            run.median(system, "stream", 16, "rss_mb"),
            run.median(system, "hold", HELD, "rss_mb"),
        )
        rows.append(
            [
                start["title"],
                number(run.median(system, "sat", 32, "per_s"), 0),
                pair("rate"),
                number(run.median(system, "stream", 16, "per_s"), 0),
                number(run.median(system, "stream", 16, "cpu_us")),
                *(number(run.median(system, "paced", count, "cpu_us")) for count in PACED),
                pair("ttfc"),
                several(memory, 0),
            ]
        )
    return rows


def verdict(values: Sequence[float | None], reach: Sequence[float], aim: Sequence[float], *, most: bool) -> str:
    """Which bound all the values keep: none is larger than its own (`most`), or none is smaller."""
    if any(value is None for value in values):
        return "not measured"
    for bounds, word in ((aim, "aim"), (reach, "reach")):
        if all((value <= bound) if most else (value >= bound) for value, bound in zip(values, bounds, strict=False)):
            return word
    return "**missed**"


def middle(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def quotient(ours: float, theirs: float) -> float:
    return ours / theirs


def difference(ours: float, theirs: float) -> float:
    return ours - theirs


def throughput(run: Run) -> Iterator[list[str]]:
    for what, mode, c, reach, aim in (
        ("whole answers/s on one core", "sat", 32, 1500, 3000),
        ("chunks/s on one core, 16 streams", "stream", 16, 70_000, 150_000),
    ):
        cost = run.median("evenflow", mode, c, "cpu_us")
        by_cpu = 1e6 / cost if cost else None
        figure = f"{number(run.median('evenflow', mode, c, 'per_s'), 0)}, by CPU {number(by_cpu, 0)}"
        peer = spread(run.against("smg", mode, c, "per_s", quotient), unit="x")
        kept = verdict([by_cpu], [reach], [aim], most=False)
        yield [what, figure, f"{peer} of SMG", f"{reach:,} / {aim:,}", f"{kept} (by CPU)"]


def paced(run: Run) -> Iterator[list[str]]:
    for count in PACED:
        floor = run.against("bare", "paced", count, "cpu_us", quotient)
        peer = run.against("smg", "paced", count, "cpu_us", quotient)
        cost = number(run.median("evenflow", "paced", count, "cpu_us"))
        kept = verdict([middle(side) for side in ([floor, peer] if peer else [floor])], [1.5, 1], [1.2, 1], most=True)
        yield [
            f"CPU per token, {count} streams of 50/s",
            f"{cost} µs, {spread(floor, unit='x')} of bare ASGI",
            f"{spread(peer, unit='x')} of SMG",
            "1.5x, below SMG / 1.2x",
            kept,
        ]


def latency(run: Run) -> Iterator[list[str]]:
    fields = ("p50_ms", "p99_ms")
    added = [run.against("litestar", "rate", 0, field, difference) for field in fields]
    kept = verdict([middle(values) for values in added], [2.5, 6], [1.5, 3], most=True)
    figure = " / ".join(spread(values) for values in added)
    yield ["added latency at 20/s, p50 / p99 ms", figure, "the floor taken off", "2.5, 6 / 1.5, 3", kept]
    first, peer = ([run.median(system, "ttfc", 0, field) for field in fields] for system in ("evenflow", "smg"))
    kept = verdict(first, [3, 6], [2, 4], most=True)
    yield ["first chunk, p50 / p99 ms", several(first), f"SMG {several(peer)}", "3, 6 / 2, 4", kept]


def footprint(run: Run) -> Iterator[list[str]]:
    memory = [run.median("evenflow", "start", 0, "rss_mb"), run.median("evenflow", "hold", HELD, "rss_mb")]
    kept = verdict(memory, [120, 250], [90, 160], most=True)
    yield [f"MB idle / {HELD:,} streams open", several(memory, 0), "", "120, 250 / 90, 160", kept]
    cold = run.median("evenflow", "cold", 0, "ready_s")
    kept = verdict([cold], [6], [3], most=True)
    yield ["cold `evenflow up` to ready, s", number(cold, 1), "embedded model on disk", "6 / 3", kept]


def budgets(run: Run) -> list[list[str]]:
    """What was promised against what was measured: what, figure, beside what, reach / aim, which of them is kept."""
    return [*throughput(run), *paced(run), *latency(run), *footprint(run)]


def notes(run: Run) -> list[str]:
    """What went wrong or was not asked, in the words of the last time."""
    found: dict[tuple[str, str, int], str] = {}
    for record in run.records:
        if record["mode"] in {"meta", "start", "end"}:
            continue
        key = (record["system"], record["mode"], record.get("c", 0))
        if record.get("errors"):
            found[key] = "; ".join(record["errors"])
        elif record.get("rate", FIRST_RATE) < FIRST_RATE:
            found[key] = f"{record['rate']:g} streams/s or so instead of {FIRST_RATE:g}, which it would not bear"
    return [f"- {system}, {mode}{f' {c}' if c else ''}: {what}" for (system, mode, c), what in found.items()]


def markdown(header: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def render(records: list[Record]) -> str:
    """Both tables, what they were measured with, and what was left out."""
    run = Run(records)
    meta = run.meta
    about = (
        f"{meta['date']}, {meta['cores']} cores of {meta['cpu']}, Python {meta['python']}; medians of rounds: "
        f"{meta['rounds']}, with floods of {meta['seconds']:g} s; the peers' upstream is the {meta['upstream']} one."
    )
    for end in (record for record in records if record["mode"] == "end"):
        about += (
            f" Work of others took {number(end['others_percent'], 0)} % of both cores meanwhile, the host included."
        )
    lines = [about, "", *markdown(list(COLUMNS), beside(run)), ""]
    lines += markdown(["budget", "measured", "in the same run", "reach / aim", "kept"], budgets(run))
    if left_out := notes(run):
        lines += ["", "Not measured, or not as asked:", "", *left_out]
    return "\n".join(lines) + "\n"


def put_into(document: str, name: str, tables: str) -> str:
    """The document with `tables` between its marks, which then name the file `name`. Raises ValueError."""
    if not MARKS.search(document):
        raise ValueError("the document has no marks `<!-- bench: FILE -->` ... `<!-- bench: end -->`")
    return MARKS.sub(lambda found: f"{found[1]}{name}{found[3]}{tables}{found[4]}", document, count=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="raw lines of a run")
    parser.add_argument("--into", type=Path, help="a document with marks")
    options = parser.parse_args()
    tables = render(read(options.file))
    sys.stdout.write(tables)
    if options.into:
        options.into.write_text(put_into(options.into.read_text(encoding="utf-8"), options.file.name, tables))


if __name__ == "__main__":
    main()
