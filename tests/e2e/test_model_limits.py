"""Public model names: what they mean, and limits of their own."""

from collections.abc import Iterator

import openai
import pytest

from tests.e2e.stack import Stack, running


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(
        tmp_path_factory.mktemp("stack"),
        WORKERS__0__ENGINE="null",
        MODELS__0__NAME="small",
        MODELS__0__MODEL="null",
        MODELS__0__MAX_INPUT="60",
        MODELS__0__MAX_OUTPUT="5",
        MODELS__1__NAME="absent",
        MODELS__1__MODEL="never-announced",
    ) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0, timeout=20) as client:
        yield client


def ask(client: openai.OpenAI, model: str, text: str = "hi", **more: int) -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **more)


def test_an_alias_answers_by_its_own_name_and_cuts_what_was_not_asked_for(client: openai.OpenAI) -> None:
    answer = ask(client, "small")
    assert answer.model == "small"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"
    whole = ask(client, "null")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 100


def test_more_than_the_alias_allows_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, "small", max_tokens=6)
    assert error.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, "small", text="x" * 200)
    assert error.value.code == "context_length_exceeded"
    assert "60" in error.value.message


def test_refused_after_acceptance_holds_nothing(stack: Stack, client: openai.OpenAI) -> None:
    for _ in range(8):  # twice the slots
        with pytest.raises(openai.BadRequestError):
            ask(client, "small", text="x" * 200)
    seen = stack.settled()
    assert seen['evenflow_worker_in_flight{worker="w1"}'] == 0
    assert seen["evenflow_streams_open"] == 0


def test_names_are_listed_and_those_without_a_worker_say_so(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["absent", "null", "small"]
    with pytest.raises(openai.InternalServerError) as error:
        ask(client, "absent")
    assert error.value.status_code == 503
    assert error.value.code == "no_worker"
    assert int(error.value.response.headers["retry-after"]) >= 1
