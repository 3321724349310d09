"""What is logged and measured, and what never is."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.stack import Stack, running

SECRET = "the-violet-submarine-4711"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("stack"), WORKERS__0__ENGINE="null", TELEMETRY__LOG_LEVEL="debug") as stack:
        yield stack


def ask(stack: Stack, **changes: object) -> httpx.Response:
    body = {"model": "null", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 8, **changes}
    headers = {**stack.headers, "x-request-id": "req-seen-in-the-log"}
    return httpx.post(f"{stack.url}/v1/chat/completions", json=body, headers=headers, timeout=20)


def log_lines(stack: Stack) -> list[str]:
    logs = (stack.directory / ".evenflow" / "log").glob("*.log*")
    return [line for log in logs for line in log.read_text(errors="replace").splitlines()]


def test_logs_are_json_with_request_ids_and_never_hold_prompts_answers_or_keys(stack: Stack) -> None:
    answer = ask(stack).json()["choices"][0]["message"]["content"]
    ask(stack, temperature=SECRET)  # refused, with the prompt in a broken body
    ask(stack, stream=True, stop=[SECRET], user=SECRET, metadata={"a": SECRET})
    httpx.get(f"{stack.url}/v1/models", headers={"authorization": f"Bearer {SECRET}"})
    stack.settled()
    lines = log_lines(stack)
    told = [json.loads(line) for line in lines if line.startswith("{")]
    requests = [line for line in told if line.get("event") == "request"]
    ours = [line for line in requests if line["request_id"] == "req-seen-in-the-log"]
    assert [line["outcome"] for line in ours] == ["ok", "invalid_type", "ok"]
    assert ours[0]["tokens"] == 8
    text = "\n".join(lines)
    assert SECRET not in text
    assert stack.key not in text
    assert stack.key[3:20] not in text
    assert answer not in text


def test_requests_that_pile_up_on_one_connection_leave_neither_key_nor_prompt_in_the_log(stack: Stack) -> None:
    body = json.dumps({"model": "null", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 50})
    one = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {stack.key}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", stack.port), 10) as client:
            client.sendall(one.encode() * 40)
            while client.recv(65536):
                pass
    stack.settled()
    text = "\n".join(log_lines(stack))
    assert SECRET not in text
    assert stack.key not in text
    assert "Exception in ASGI" not in text


def test_what_clients_invent_never_becomes_a_label(stack: Stack) -> None:
    ask(stack)
    before = set(stack.settled())
    with httpx.Client(headers=stack.headers, timeout=20) as client:
        for number in range(300):
            client.post(
                f"{stack.url}/v1/chat/completions",
                json={
                    "model": f"made-up-{number}",
                    "messages": [{"role": "user", "content": "x"}],
                    "user": f"user-{number}",
                },
            )
            client.get(f"{stack.url}/made/up/{number}")
    after = set(stack.settled())
    new = {name for name in after - before if "made" in name or "user-" in name}
    assert not new
    assert len(after - before) < 40, "only the series of the outcome model_not_found may be new"
    again = set(stack.metrics())
    assert again == after


def test_metrics_of_gateway_and_fleet_add_up(stack: Stack) -> None:
    before = stack.settled()
    for _ in range(3):
        assert ask(stack, max_tokens=7).status_code == 200
    after = stack.settled()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown('evenflow_tokens_total{gen_ai_request_model="null",kind="completion"}') == 21
    assert grown('evenflow_requests_total{gen_ai_request_model="null",outcome="ok"}') == 3
    assert grown('gen_ai_server_time_to_first_token_seconds_count{gen_ai_request_model="null"}') == 3
    assert after['evenflow_worker_slots{worker="w1"}'] == 4
    assert after['evenflow_worker_state{state="ready",worker="w1"}'] == 1


def test_probes_need_no_key_and_say_what_serves(stack: Stack) -> None:
    for url in (stack.url, stack.admin):
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        ready = httpx.get(f"{url}/ready").json()
        assert ready["missing"] == []
        assert ready["workers"][0]["models"] == ["null@1"]
    assert httpx.get(f"{stack.url}/metrics").status_code == 404, "metrics belong to the operators' port"
