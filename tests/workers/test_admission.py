"""From a job to the engine's request, or to the counts that do not fit."""

from typing import Any

import pytest

from shared.wire import Job, Sampling
from workers.core.admission import RefusedError, engine_request
from workers.engines.base import Capabilities, EngineRequest

LOADED = Capabilities(
    model="m",
    version="1",
    digest="",
    vocab_hash="",
    vocab_size=10,
    slots=1,
    context=100,
    max_output=40,
    features=(),
    device="cpu",
    runtime="",
    kernel="",
    chat_template="",
    bos="",
    eos="",
    control_tokens=(),
)


def asked(prompt: int, **job: Any) -> EngineRequest:
    made = Job(
        gep="g",
        sid=7,
        aid="r.0.0",
        tenant="t",
        model="m",
        version="1",
        kind="text",
        input="",
        deadline_ms=1000,
        **job,
    )
    return engine_request("w", made, [0] * prompt, LOADED, 1.0)


@pytest.mark.parametrize(
    ("prompt", "job", "expected"),
    [
        (10, {}, 40),  # the model's own most
        (90, {}, 10),  # what the context leaves
        (10, {"max_tokens": 90}, 90),  # exactly full
        (10, {"max_tokens": 30, "most_output": 20}, 20),
        (10, {"most_output": 20}, 20),
        (10, {"most_output": 50}, 40),
        (10, {"most_prompt": 10}, 40),
    ],
)
def test_max_tokens_is_filled_in(prompt: int, job: dict[str, int], expected: int) -> None:
    assert asked(prompt, **job).max_tokens == expected


@pytest.mark.parametrize(
    ("prompt", "job", "limit"),
    [
        (100, {}, 100),  # no room for a single token
        (101, {}, 100),
        (10, {"max_tokens": 91}, 100),
        (11, {"most_prompt": 10}, 10),
        (100, {"most_prompt": 500}, 100),
    ],
)
def test_what_does_not_fit_is_refused_with_both_counts(prompt: int, job: dict[str, int], limit: int) -> None:
    with pytest.raises(RefusedError) as error:
        asked(prompt, **job)
    nack = error.value.nack
    assert (nack.code, nack.prompt_tokens, nack.limit, nack.sid) == ("too_large", prompt, limit, 7)


def test_requests_of_two_gateway_epochs_have_different_names_in_the_engine() -> None:
    assert asked(1).id == "g.7"


@pytest.mark.parametrize(
    ("job", "param"),
    [({"sampling": Sampling(logit_bias={10: 1.0})}, "logit_bias"), ({"logprobs": 1}, "logprobs")],
)
def test_what_the_engine_would_refuse_is_refused_before_it_is_accepted(job: dict[str, Any], param: str) -> None:
    with pytest.raises(RefusedError) as error:
        asked(10, **job)
    assert (error.value.nack.code, error.value.nack.param) == ("bad_request", param)
