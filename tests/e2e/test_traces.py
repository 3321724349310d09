"""A request's trace over real processes, received by a real OTLP receiver; and receivers that nobody should notice."""

import json
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.stack import Stack, running
from tests.traces.receiver import Receiver, receiving

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENT = "00f067aa0ba902b7"
SECRET = "the-violet-submarine-4711"
GRACE_S = 6


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Stack]:
    settings = {
        "WORKERS__0__ENGINE": "null",
        "TELEMETRY__OTLP_ENDPOINT": receiver.url,
        "GATEWAY__SHUTDOWN_GRACE_S": str(GRACE_S),
    }
    with pytest.MonkeyPatch.context() as soon:
        soon.setenv("OTEL_BSP_SCHEDULE_DELAY", "500")  # milliseconds between batches
        with running(tmp_path_factory.mktemp("traces"), **settings) as stack:
            yield stack


def ask(stack: Stack, trace_id: str = TRACE_ID) -> httpx.Response:
    body = {"model": "null", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 20, "stream": True}
    headers = {**stack.headers, "traceparent": f"00-{trace_id}-{CLIENT}-01"}
    return httpx.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers, timeout=20)


def logged(stack: Stack, event: str) -> list[dict[str, str]]:
    """What gateway and worker have logged under that name."""
    logs = (stack.directory / ".evenflow" / "log").glob("*.log*")
    return [
        json.loads(line)
        for log in logs
        for line in log.read_text(errors="replace").splitlines()
        if line.startswith("{") and json.loads(line).get("event") == event
    ]


def test_one_requests_trace_arrives_whole_and_connected_across_the_processes(stack: Stack, receiver: Receiver) -> None:
    answer = ask(stack)
    assert answer.status_code == 200
    spans = receiver.wait_for(TRACE_ID, 8)
    by_id = {span["id"]: span for span in spans}

    def path(span: dict[str, str]) -> str:
        above = by_id.get(span["parent"])
        return f"{span['parent'] if above is None else path(above)}/{span['name']}"

    assert sorted(path(span) for span in spans) == sorted(
        f"{CLIENT}/{below}"
        for below in (
            "gateway",
            "gateway/queue",
            "gateway/dispatch",
            "gateway/dispatch/worker",
            "gateway/dispatch/worker/queue",
            "gateway/dispatch/worker/prefill",
            "gateway/dispatch/worker/decode",
            "gateway/relay",
        )
    )
    process = {span["name"]: span["process"] for span in spans}
    assert (process["gateway"]["service.name"], process["gateway"]["service.instance.id"]) == ("evenflow-gateway", "g1")
    assert (process["decode"]["service.name"], process["decode"]["service.instance.id"]) == ("evenflow-worker", "w1")
    root = next(span for span in spans if span["name"] == "gateway")
    assert root["attributes"]["gen_ai.usage.output_tokens"] == 20
    assert root["attributes"]["http.response.status_code"] == 200
    assert {span["name"] for span in spans if "first_token" in span["events"]} == {"relay", "decode"}
    told = json.dumps(spans)
    assert SECRET not in told
    assert stack.key not in told
    assert [line["trace_id"] for line in logged(stack, "request")] == [TRACE_ID]


@pytest.mark.parametrize("mode", ["refuse", "endless", "hang"])
def test_clients_notice_nothing_of_a_bad_receiver(stack: Stack, receiver: Receiver, mode: str) -> None:
    receiver.mode, seen = mode, receiver.requests
    until = time.monotonic() + 20
    while receiver.requests < seen + 2 and time.monotonic() < until:  # gateway and worker have both met it
        answer = ask(stack)
        assert answer.status_code == 200
        assert answer.text.endswith("data: [DONE]\n\n")
    assert receiver.requests >= seen + 2
    for _ in range(20):
        assert ask(stack).text.endswith("data: [DONE]\n\n")


def test_the_end_does_not_wait_for_a_receiver_that_hangs(stack: Stack, receiver: Receiver) -> None:
    receiver.mode = "hang"
    for _ in range(20):
        ask(stack)
    assert "evenflow_telemetry_exported_total" in stack.metrics()
    assert stack.stop() == 0
    output = (stack.directory / "up.out").read_text()
    assert "did not end in time" not in output, "somebody had to be killed"
    assert {line["service"] for line in logged(stack, "spans_lost")} == {"g1", "w1"}
