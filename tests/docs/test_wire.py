"""docs/wire.md says what shared/wire.py and shared/subjects.py say, and places are where the encoder puts them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from shared import subjects, wire
from tests.docs.markdown import ROOT, table

DOCUMENT = ROOT / "docs" / "wire.md"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("evenflow_docs_wire", ROOT / "infra" / "docs" / "wire.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def section(name: str) -> list[dict[str, str]]:
    _, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(f"\n### {name}\n")
    return table(rest.partition("\n#")[0], "place")


def test_the_document_is_what_the_code_says(maker: ModuleType) -> None:
    current = DOCUMENT.read_text(encoding="utf-8")
    assert maker.document(current) == current, "run python infra/docs/wire.py"


def test_a_change_of_the_code_is_noticed(
    maker: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "wire.md"
    copy.write_text(DOCUMENT.read_text(encoding="utf-8").replace("| `wep` |", "| `wap` |", 1), encoding="utf-8")
    monkeypatch.setattr(maker, "DOCUMENT", copy)
    monkeypatch.setattr(sys, "argv", ["wire.py", "--check"])
    assert maker.main() == 1
    assert "run python" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["wire.py"])
    assert maker.main() == 0
    assert copy.read_text(encoding="utf-8") == DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "message",
    [
        wire.Ann(wep="e", n=7, state="ready", slots=wire.Slots(total=4, free=3)),
        wire.Job(
            gep="e", sid=5, aid="r.0.0", tenant="t", model="m", version="1", kind="text", input="x", deadline_ms=9
        ),
        wire.Accept(wep="e", sid=5, prompt_tokens=12),
        wire.Text(5, 0, "hi", (1, 2)),
        wire.End(5, 1, "stop", wire.Usage(prompt=3, completion=4)),
        wire.Credit(gep="e", wep="w", ack=1, allow_fseq=2, allow_bytes=3, open=(5,)),
        wire.Usage(prompt=3),
    ],
    ids=lambda message: type(message).__name__,
)
def test_places_are_where_the_encoder_puts_them(message: Any) -> None:
    encoded = msgspec.msgpack.decode(wire.encode(message))
    rows = section(type(message).__name__)
    assert len(rows) == len(encoded)
    for row in rows:
        value = encoded[int(row["place"])]
        if not row["field"]:
            assert row["type"] == f"always `{value!r}`"
        else:
            field = getattr(message, row["field"].strip("`"))
            assert value == msgspec.msgpack.decode(msgspec.msgpack.encode(field))


def test_every_subject_and_every_message_it_carries_is_there() -> None:
    rows = {row["subject"]: row for row in table(DOCUMENT.read_text(encoding="utf-8"), "subject")}
    assert len(rows) == len(subjects.TABLE)
    for subject in subjects.TABLE:
        row = rows[f"`{subjects.PREFIX}.{subject.pattern}`"]
        assert (row["published by"], row["heard by"]) == (subject.publisher, subject.subscriber)
        for name in subject.carries.split(" | "):
            assert f"`{name}`" in row["carries"]
            assert section(name), name
