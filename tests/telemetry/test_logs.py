"""What is told of an exception: its kind and its places, nothing that a client may have sent."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from shared.errors import ModelError
from shared.outlet import Outlet
from shared.telemetry import configure_logs

PROMPT = "the-violet-submarine"


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Path]:
    """A log of its own; structlog and logging as they were, afterwards."""
    root = logging.getLogger()
    handlers, level, before = root.handlers[:], root.level, structlog.get_config()
    configure_logs("svc", "info", str(tmp_path))
    yield tmp_path / "svc.log"
    for handler in root.handlers:
        if isinstance(stream := getattr(handler, "stream", None), Outlet):
            stream.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**before)


def fail(secret: str) -> None:
    local = f"Bearer {secret}"
    raise ValueError(f"cannot use {local}")


def test_neither_locals_nor_a_librarys_message_reach_the_log(lines: Path) -> None:
    try:
        fail(PROMPT)
    except ValueError as error:
        structlog.get_logger("ours").exception("ours_failed")
        structlog.get_logger("ours").error("ours_again", exc_info=error)
        logging.getLogger("uvicorn.error").exception("theirs failed")
    text = lines.read_text()
    told = [json.loads(line) for line in text.splitlines()]
    assert [line["event"] for line in told] == ["ours_failed", "ours_again", "theirs failed"]
    for line in told:
        assert line["exception"][0]["type"] == "ValueError"
        assert any(place.endswith(" fail") for place in line["exception"][0]["at"])
    assert PROMPT not in text


def test_our_own_words_and_the_chain_of_causes_are_told(lines: Path) -> None:
    try:
        try:
            fail(PROMPT)
        except ValueError as error:
            raise ModelError("cannot read the model file x") from error
    except ModelError:
        structlog.get_logger("ours").exception("failed")
    (line,) = map(json.loads, lines.read_text().splitlines())
    assert [error["type"] for error in line["exception"]] == ["ModelError", "ValueError"]
    assert line["exception"][0]["message"] == "cannot read the model file x"
    assert PROMPT not in json.dumps(line)


def test_whatever_is_logged_comes_out_as_a_line(lines: Path) -> None:
    class Odd:
        def __repr__(self) -> str:
            return "odd"

    log = structlog.get_logger("ours")
    log.info("half", path="/\ud800")
    log.info("object", thing=Odd(), number=float("nan"))
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line["event"] for line in told] == ["half", "object"]
    assert told[0]["path"] == "/\ud800"
    assert told[1]["thing"] == "odd"
