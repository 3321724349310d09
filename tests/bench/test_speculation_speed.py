"""On text that quotes its prompt, n-gram drafts make one worker faster than its undrafted twin, in the same run."""

import statistics
import time

import openai
import pytest

from tests.e2e.stack import LLAMA, Stack, running

pytestmark = pytest.mark.timeout(600)

PAIRS = 9
TOKENS = 100
TEXT = (
    "The harbour master counted seven grey boats, two red buoys and one old lighthouse"
    " before the fog rolled in from the north and hid them all."
)
PROMPT = f"{TEXT}\n{TEXT}\n{TEXT[: TEXT.index(' boats')]}"


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    settings = {}
    for index, kind in enumerate(("none", "ngram")):
        settings |= {
            f"WORKERS__{index}__NAME": kind,
            f"WORKERS__{index}__VERSION": kind,
            f"WORKERS__{index}__DRAFT__KIND": kind,
            f"MODELS__{index}__NAME": kind,
            f"MODELS__{index}__MODEL": LLAMA,
            f"MODELS__{index}__VERSION": kind,
        }
    with running(tmp_path_factory.mktemp("speed"), WORKERS="2", MODELS="2", **settings) as made:
        yield made


def decode_s(client: openai.OpenAI, model: str) -> tuple[float, int]:
    """Seconds from the first piece of text to the last, and the draft tokens that were accepted."""
    first = last = 0.0
    accepted = 0
    for chunk in client.completions.create(
        model=model,
        prompt=PROMPT,
        max_tokens=TOKENS,
        temperature=0,
        logit_bias={"2": -100},
        stream=True,
        stream_options={"include_usage": True},
    ):
        if chunk.usage:
            assert chunk.usage.completion_tokens == TOKENS
            accepted = chunk.usage.completion_tokens_details.accepted_prediction_tokens
        elif chunk.choices[0].text:
            last = time.perf_counter()
            first = first or last
    return last - first, accepted


def test_ngram_drafts_pay_on_quotations(stack: Stack):
    ratios = []
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=3) as client:
        for model in ("none", "ngram"):
            decode_s(client, model)  # the first request finds caches cold
        for pair in range(PAIRS):
            order = ("none", "ngram") if pair % 2 else ("ngram", "none")  # neither always goes first
            spent = {model: decode_s(client, model) for model in order}
            assert spent["none"][1] == 0 < spent["ngram"][1]
            ratios.append(spent["none"][0] / spent["ngram"][0])
    median = statistics.median(ratios)
    print(f"n-gram drafts against none, decode time: median {median:.2f}x of {PAIRS} pairs, {sorted(ratios)}")
    assert median > 1.0, sorted(ratios)
