"""Whole stacks that the end-to-end tests share: each is started when a test first asks for it, and lives to the end.

A test that kills or stops anything starts a stack of its own instead (`tests.e2e.stack.running`).
"""

import time
from collections.abc import Callable, Iterator

import httpx
import openai
import pytest

from tests.e2e.stack import LLAMA, Stack, running
from workers.models import embedded_path

DRAFTS = {"none": "none", "ngram": "ngram", "draft": "model"}
"""Version of the model -> where its worker's drafts come from."""


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One llama.cpp worker, everything at its default."""
    with running(tmp_path_factory.mktemp("llama")) as stack:
        yield stack


@pytest.fixture(scope="session")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Three llama.cpp workers that differ in their drafts alone; `smol-none`, `smol-ngram` and `smol-draft` mean them.

    None of them starts from an earlier prompt's cache: where one request runs at a time, every run of a prompt computes
    the same numbers, so that texts may be compared to the letter.
    """
    settings = {}
    for index, (version, kind) in enumerate(DRAFTS.items()):
        settings |= {
            f"WORKERS__{index}__NAME": version,
            f"WORKERS__{index}__VERSION": version,
            f"WORKERS__{index}__PREFIX_CACHE": "false",
            f"WORKERS__{index}__DRAFT__KIND": kind,
            f"WORKERS__{index}__DRAFT__PATH": str(embedded_path()) if kind == "model" else "",
            f"MODELS__{index}__NAME": f"smol-{version}",
            f"MODELS__{index}__MODEL": LLAMA,
            f"MODELS__{index}__VERSION": version,
        }
    with running(tmp_path_factory.mktemp("trio"), WORKERS="3", MODELS="3", **settings) as stack:
        _until_ready(stack, len(DRAFTS))
        yield stack


@pytest.fixture(scope="session")
def null(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker without a model: its answers come at once and are made up."""
    with running(tmp_path_factory.mktemp("null"), WORKERS__0__ENGINE="null") as stack:
        yield stack


@pytest.fixture
def client_of() -> Iterator[Callable[[Stack], openai.OpenAI]]:
    """Makes an official client of a stack; it never retries, so that every answer is seen as it came."""
    made = []

    def make(stack: Stack, **options: object) -> openai.OpenAI:
        client = openai.OpenAI(base_url=f"{stack.url}/v1", **{"api_key": stack.key, "max_retries": 0, **options})
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def client(trio: Stack, client_of: Callable[[Stack], openai.OpenAI]) -> openai.OpenAI:
    """An official client of the three workers."""
    return client_of(trio)


def _until_ready(stack: Stack, count: int, within_s: float = 60.0) -> None:
    """`/ready` says yes as soon as one worker is: wait for all."""
    until = time.monotonic() + within_s
    while True:
        workers = httpx.get(f"{stack.url}/ready", timeout=5).json()["workers"]
        if sum(worker["state"] == "ready" for worker in workers) == count:
            return
        assert time.monotonic() < until, workers
        time.sleep(0.05)
