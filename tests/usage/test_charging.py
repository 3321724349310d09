"""What a request costs, by how it ended."""

import pytest

from gateway.core.charging import CLIENTS_DOING, Spent, totals
from shared.wire import End, Fail, Timings, Usage

WHOLE = Usage(prompt=9, cached=4, completion=20, accepted=3, proposed=5, device_seconds=0.5)


def ended(reason="stop", usage=WHOLE, received=20):
    return Spent(received, 9, End(1, 7, reason, usage, Timings(queue_ms=1.0, prefill_ms=2.0, decode_ms=3.0)))


def failed(received, usage=None, code="worker_lost"):
    return Spent(received, 9, Fail(1, 7, code, "", retryable=True, usage=usage or Usage()))


def test_a_good_answer_costs_what_its_worker_counted():
    sums = totals("ok", 18, 50.0, [ended()])  # 18: the end-of-text token and the last piece are no text of their own
    assert (sums.outcome, sums.prompt, sums.cached, sums.charged, sums.generated) == ("stop", 9, 4, 20, 20)
    assert (sums.accepted, sums.proposed, sums.device_seconds) == (3, 5, 0.5)
    assert (sums.queue_ms, sums.prefill_ms, sums.decode_ms) == (51.0, 2.0, 3.0)


def test_choices_share_one_prompt_and_add_up_what_they_made():
    sums = totals("ok", 0, 0.0, [ended(), ended("length", Usage(prompt=9, cached=9, completion=7), received=7)])
    assert (sums.outcome, sums.prompt, sums.cached, sums.charged, sums.decode_ms) == ("length", 9, 4, 27, 6.0)


@pytest.mark.parametrize("outcome", sorted(CLIENTS_DOING - {"ok"}))
def test_who_leaves_pays_for_what_was_made_until_then(outcome):
    sums = totals(outcome, 5, 0.0, [ended("cancelled")])
    assert (sums.outcome, sums.prompt, sums.charged, sums.generated) == (outcome, 9, 20, 20)


@pytest.mark.parametrize("outcome", ["worker_failed", "draining", "internal_error", "anything_else"])
def test_when_we_fail_what_the_socket_took_is_paid_for(outcome):
    sums = totals(outcome, 5, 0.0, [failed(received=12)])
    assert (sums.prompt, sums.charged, sums.generated) == (9, 5, 12)


def test_an_error_alone_costs_nothing():
    sums = totals("worker_failed", 0, 0.0, [failed(received=12)])
    assert (sums.prompt, sums.cached, sums.charged, sums.generated) == (0, 0, 0, 12)


def test_never_more_is_charged_than_was_made():
    assert totals("worker_failed", 50, 0.0, [failed(received=12)]).charged == 12


def test_without_a_last_word_what_arrived_counts():
    sums = totals("client_left", 3, 0.0, [Spent(received=6, prompt=9, terminal=None)])
    assert (sums.prompt, sums.charged, sums.generated) == (9, 6, 6)


def test_an_attempt_that_never_began_takes_nothing_from_the_one_that_did():
    sums = totals("ok", 20, 0.0, [Spent(0, 0, None), failed(0, code="worker_frozen"), ended()])
    assert (sums.prompt, sums.cached, sums.charged) == (9, 4, 20)
