"""The first connection: bounded, to any of several servers, and with an error that says where and why."""

import asyncio
import asyncio.sslproto
import inspect
import logging
import socket

import pytest

from shared.bus import Bus
from shared.errors import BusError, SettingsError


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    return f"nats://user:secret@127.0.0.1:{port}"


async def test_no_url_is_a_setting_to_make() -> None:
    with pytest.raises(SettingsError, match=r"^nats\.url: is not set"):
        await Bus("x", "e").connect("")


@pytest.mark.parametrize("several", [False, True])
async def test_an_absent_server_is_named_without_its_secret_and_not_waited_for(nobody: str, several: bool) -> None:
    url = f"{nobody}, {nobody}" if several else nobody
    async with asyncio.timeout(10):
        with pytest.raises(BusError) as error:
            await Bus("x", "e").connect(url, wait_s=0.5)
    assert nobody.partition("@")[2] in str(error.value)
    assert "secret" not in str(error.value)
    assert "refused" in str(error.value).lower() or "connect" in str(error.value).lower()


async def test_something_that_is_no_nats_server_is_given_up_on() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(10):
        with pytest.raises(BusError, match="nothing answered"):
            await Bus("x", "e").connect(f"nats://127.0.0.1:{port}", wait_s=0.5)
    server.close()
    for writer in writers:
        writer.close()
        await writer.wait_closed()


async def test_a_connect_that_loses_its_cancellation_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = 0

    async def stubborn(*_args: object, **_options: object) -> None:
        nonlocal told
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told += 1
                if told == 3:
                    raise

    bus = Bus("x", "e")
    monkeypatch.setattr(bus._client, "connect", stubborn)
    with pytest.raises(BusError, match=r"within 0\.05 s"):
        await bus.connect("nats://127.0.0.1:1", wait_s=0.05)
    assert told == 3


async def test_a_server_that_answers_late_after_a_reconnect_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, answers, back = Bus("x", "e"), iter([BusError("late"), BusError("late"), None]), asyncio.Event()

    async def barrier() -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    monkeypatch.setattr(type(bus), "connected", True)
    monkeypatch.setattr(bus, "barrier", barrier)
    monkeypatch.setattr("shared.bus._AGAIN_S", 0.0)
    bus.on_reconnect = back.set
    await bus._reconnected()
    async with asyncio.timeout(30):
        await back.wait()
    assert next(answers, "asked three times") == "asked three times"


async def test_a_remark_of_asyncio_that_means_nothing_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    remark = "returning true from eof_received() has no effect when using ssl"
    assert remark in " ".join(inspect.getsource(asyncio.sslproto).replace("'", "").split())  # as this Python words it
    with pytest.raises(BusError):
        await Bus("x", "e").connect("nats://127.0.0.1:1", wait_s=0.1)
    theirs = logging.getLogger("asyncio")
    assert theirs.level == logging.NOTSET, "it is told to be silent for the whole process"
    theirs.warning(remark)
    theirs.warning("something else")
    assert [record.message for record in caplog.records if record.name == "asyncio"] == ["something else"]
