"""docs/telemetry.md against the code: every metric with its kind and labels, every span with what it can say."""

import re

import pytest

from shared import telemetry
from tests.docs.markdown import ROOT, table
from tests.traces.inside import inside
from workers.engines.null import NullEngine

TEXT = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`]+)`")


class Pipe:
    """Stands in for a receiver's books."""

    exported = 0
    dropped = {"queue_full": 0, "not_taken": 0}  # noqa: RUF012


class Measured(NullEngine):
    """A null engine that knows its speed, as the real ones do."""

    def stats(self):
        import msgspec

        return msgspec.structs.replace(super().stats(), itl_ms={1: 20.0})


async def scrape():
    async with inside(Measured()) as stack:
        await stack.ask(stream=True, max_tokens=20)
        stack.house.meters.watch_traces(Pipe())
        return stack.house.meters.scrape().decode()


async def test_the_table_of_metrics_is_the_scrape():
    text = await scrape()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    labels = {name: set() for name in kinds}
    for sample, inside_braces in re.findall(r"^(\w+?)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        name = sample if sample in kinds else re.sub(r"_(bucket|count|sum)$", "", sample)
        labels[name] |= set(re.findall(r'(\w+)="', inside_braces)) - {"le"}
    documented = {CODE.search(row["metric"])[1]: row for row in table(TEXT, "metric")}
    assert set(documented) == set(kinds)
    told = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    assert {name: row["what"] for name, row in documented.items()} == told
    assert {name: row["kind"] for name, row in documented.items()} == kinds
    assert {name: set(CODE.findall(row["labels"])) for name, row in documented.items()} == labels


async def test_only_what_was_in_the_line_counts_as_a_wait():
    async with inside(Measured()) as stack:
        await stack.ask(max_tokens=1)
        await stack.ask(max_tokens=1, model="unknown")
        await stack.ask(messages="nonsense")
        text = stack.house.meters.scrape().decode()
    counts = re.findall(r"^evenflow_queue_duration_seconds_count\{.*\} (\S+)$", text, re.MULTILINE)
    assert [float(count) for count in counts] == [1.0]
    assert len(re.findall(r"^evenflow_requests_total", text, re.MULTILINE)) == 3


@pytest.mark.parametrize("broken", [False, True])
async def test_spans_say_what_the_table_says(broken):
    documented = {CODE.search(row["span"])[1]: row for row in table(TEXT, "span")}
    assert set(documented) == {value for name, value in vars(telemetry).items() if name.startswith("SPAN_")} - {
        telemetry.SPAN_OUTCOME
    }
    async with inside(NullEngine()) as stack:
        await (stack.ask(messages=[{"role": "user", "content": "x" * 5000}]) if broken else stack.ask())
        spans = stack.spans()
    for name, group in spans.items():
        told = set(CODE.findall(documented[name]["attributes"]))
        for span in group:
            assert set(span.attributes) <= told, name
            assert span.kind.name.lower() == documented[name]["kind"]
    if not broken:
        quiet = {"error.type", "evenflow.refusal", "evenflow.cancelled_for"}
        for name in ("gateway", "worker", "dispatch"):
            assert set(CODE.findall(documented[name]["attributes"])) - quiet == set(spans[name][0].attributes)


def test_every_name_of_an_attribute_or_event_is_explained():
    for name, value in vars(telemetry).items():
        if isinstance(value, str) and (
            value.startswith(("gen_ai.", "evenflow.", "http.")) or name.startswith("EVENT_")
        ):
            plain = value.replace(".", "_")
            assert f"`{value}`" in TEXT or plain in TEXT, value
