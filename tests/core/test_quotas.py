"""Reservations against rate windows, budgets and streams."""

import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.core.accounts import Account, Gauge, Limits, Periods, gauges
from gateway.core.quotas import Quotas, Refusal, Reservation, Want

TODAY = Periods(1, 1)
PROVE = os.environ.get("EVENFLOW_PROVE") == "1"


def want(prompt: int = 10, asked: int | None = 10, **more: Any) -> Want:
    return Want(**({"prompt": prompt, "prompt_most": prompt, "asked": asked, "room": 1_000, "usual": 256} | more))


def one(limits: Limits) -> tuple[Quotas, Account]:
    quotas = Quotas()
    return quotas, quotas.account(0, "t", limits)


def level(account: Account, now_ms: int = 0) -> int:
    assert account.tokens is not None
    return account.tokens.level(now_ms)


def test_of_two_hundred_at_once_exactly_as_many_get_in_as_the_limit_allows() -> None:
    for limits in (Limits(requests=37), Limits(tokens=37 * 20 + 19), Limits(streams=37), Limits(daily=37 * 20 + 1)):
        quotas, account = one(limits)
        answers = [quotas.reserve(0, f"r{n}", want(), TODAY, [account]) for n in range(200)]
        assert [isinstance(answer, Reservation) for answer in answers] == [True] * 37 + [False] * 163, limits


def test_a_refusal_names_the_limit_that_takes_longest_and_the_time_is_right() -> None:
    quotas, account = one(Limits(requests=60, tokens=1_000))
    other = quotas.account(0, "k", Limits(requests=30))
    for n in range(30):
        assert isinstance(quotas.reserve(0, f"r{n}", want(), TODAY, [account, other]), Reservation)
    refused = quotas.reserve(0, "late", want(), TODAY, [account, other])
    assert refused == Refusal("requests", "k", 30, 2_000), (
        "its tokens would be there, and so would the tenant's requests"
    )
    assert isinstance(quotas.reserve(1_999, "late", want(), TODAY, [account, other]), Refusal)
    assert isinstance(quotas.reserve(2_000, "late", want(), TODAY, [account, other]), Reservation)


def test_what_was_not_used_goes_back_and_what_was_used_beyond_is_owed() -> None:
    quotas, account = one(Limits(tokens=1_000))
    quotas.reserve(0, "a", want(asked=None), TODAY, [account])
    assert level(account) == 1_000 - 266, "without max_tokens it is what such requests usually take"
    assert quotas.settle(0, "a", 30)
    assert level(account) == 970
    quotas.reserve(0, "b", want(asked=None), TODAY, [account])
    quotas.settle(0, "b", 980)
    assert level(account) == -10
    assert quotas.reserve(0, "c", want(1, 1), TODAY, [account]) == Refusal("tokens", "t", 1_000, 720)


def test_a_strict_account_reserves_all_that_may_come() -> None:
    quotas, account = one(Limits(tokens=1_000, strict=True))
    held = quotas.reserve(0, "a", want(asked=None), TODAY, [account])
    assert isinstance(held, Reservation)
    assert (held.total, level(account)) == (1_000, 0)


def test_settling_twice_or_what_never_was_changes_nothing() -> None:
    quotas, account = one(Limits(requests=5, tokens=100, streams=1, daily=100))
    quotas.reserve(0, "a", want(), TODAY, [account])
    assert quotas.settle(0, "a", 15)
    before = (level(account), account.streams, dict(account.days), dict(account.months))
    assert not quotas.settle(0, "a", 15)
    assert not quotas.settle(0, "b", 15)
    assert (level(account), account.streams, dict(account.days), dict(account.months)) == before


def test_a_failure_that_is_not_the_clients_counts_for_nothing() -> None:
    quotas, account = one(Limits(requests=5, tokens=100, daily=100))
    quotas.reserve(0, "a", want(), TODAY, [account])
    quotas.settle(0, "a", 0, unused=True)
    assert account.requests is not None
    assert (account.requests.level(0), level(account), account.days[1].used) == (5, 100, 0)


def test_too_large_is_only_what_could_never_fit() -> None:
    quotas, account = one(Limits(tokens=100))
    assert quotas.reserve(0, "a", want(10, 91), TODAY, [account]) == Refusal("too_large", "t", 100)
    assert isinstance(quotas.reserve(0, "b", want(10, 90), TODAY, [account]), Reservation)
    quotas, account = one(Limits(tokens=100))
    guessed = want(80, 50, prompt_most=400)
    held = quotas.reserve(0, "a", guessed, TODAY, [account])
    assert isinstance(held, Reservation), "the prompt may turn out shorter: who counts it will tell"
    assert held.total == 100
    assert isinstance(quotas.reserve(60_000, "b", want(99, None), TODAY, [account]), Reservation)
    assert quotas.reserve(0, "c", want(100, None), TODAY, [account]) == Refusal("too_large", "t", 100)


def test_a_budget_cuts_the_answer_and_then_refuses() -> None:
    quotas, account = one(Limits(daily=100, monthly=1_000))
    held = quotas.reserve(0, "a", want(10, None), TODAY, [account])
    assert isinstance(held, Reservation)
    assert held.total == 100
    assert quotas.reserve(0, "b", want(10, None), TODAY, [account]) == Refusal("daily", "t", 100)
    quotas.settle(0, "a", 60)
    second = quotas.reserve(0, "c", want(10, 500), TODAY, [account])
    assert isinstance(second, Reservation)
    assert second.total == 40, "an explicit max_tokens is cut, too: 400 is for what can never fit"
    assert isinstance(quotas.reserve(0, "d", want(), Periods(2, 1), [account]), Reservation), "the next day"
    quotas.settle(0, "c", 40)
    assert account.days[2].used == 0, "what was reserved yesterday is yesterday's"
    assert list(account.days) == [2], "and then yesterday is forgotten"
    quotas.settle(0, "d", 1)
    assert account.months[1].used == 101


def test_a_counted_prompt_gives_back_what_was_reserved_for_a_longer_one() -> None:
    quotas, account = one(Limits(tokens=1_000, daily=1_000))
    held = quotas.reserve(0, "a", want(100, 50, prompt_most=400), TODAY, [account])
    assert isinstance(held, Reservation)
    assert (held.total, level(account)) == (450, 850)
    quotas.adjust(0, "a", 20)
    assert (held.total, level(account), account.days[1].reserved) == (70, 930, 70)
    quotas.adjust(0, "a", 20)
    assert (held.total, level(account), account.days[1].reserved) == (70, 930, 70)
    quotas.settle(0, "a", 70)
    assert (level(account), account.days[1].used, account.days[1].reserved) == (930, 70, 0)


def test_whoever_has_its_answer_holds_no_stream_though_its_tokens_are_not_settled() -> None:
    quotas, account = one(Limits(streams=2, long_prompts=1, daily=100))
    assert isinstance(quotas.reserve(0, "a", want(long=True, choices=2, asked=3), TODAY, [account]), Reservation)
    assert quotas.reserve(0, "b", want(asked=3), TODAY, [account]) == Refusal("concurrency", "t", 2)
    quotas.leave("a")
    quotas.leave("a")
    quotas.leave("unknown")
    assert (account.streams, account.long_prompts, account.days[1].reserved) == (0, 0, 16)
    assert isinstance(quotas.reserve(0, "b", want(asked=3, choices=2), TODAY, [account]), Reservation)
    quotas.settle(0, "a", 16)
    assert (account.streams, account.days[1].used, account.days[1].reserved) == (2, 16, 16)


def test_long_prompts_are_bounded_by_what_is_likely_and_counted_by_what_is_true() -> None:
    quotas, account = one(Limits(long_prompts=1))
    quotas.reserve(0, "a", want(9_000, long=True), TODAY, [account])
    assert quotas.reserve(0, "b", want(9_000, long=True), TODAY, [account]) == Refusal("long_prompts", "t", 1)
    assert isinstance(quotas.reserve(0, "short", want(), TODAY, [account]), Reservation)
    quotas.adjust(0, "a", 7_000, long=False)
    assert account.long_prompts == 0, "it was none after all"
    quotas.adjust(0, "short", 9_999, long=True)
    quotas.adjust(0, "short", 9_999, long=True)
    assert account.long_prompts == 1, "it was one after all"
    quotas.leave("a")
    quotas.leave("short")
    assert account.long_prompts == 0


@pytest.mark.parametrize(("prompt", "context", "room"), [(5, 20, 8), (15, 20, 8), (19, 20, 8), (3, 20, 20), (1, 2, 9)])
@pytest.mark.parametrize("choices", [1, 2, 3])
def test_no_prompt_up_to_its_bound_takes_more_than_is_reserved(
    prompt: int, context: int, room: int, choices: int
) -> None:
    quotas, account = one(Limits(daily=10**6))
    asked = want(1, None, prompt_most=prompt, context=context, room=room, choices=choices)
    held = quotas.reserve(0, "a", asked, TODAY, [account])
    assert isinstance(held, Reservation)
    takes = [p + choices * max(0, min(room, context - p)) for p in range(1, prompt + 1)]
    assert held.total == max(takes)
    quotas.adjust(0, "a", prompt)
    assert held.total == takes[-1]
    quotas.adjust(0, "a", prompt, output=1)
    assert held.total == min(takes[-1], prompt + choices * min(1, context - prompt))


def test_what_an_earlier_life_left_open_keeps_its_part_until_it_closes() -> None:
    quotas, account = one(Limits(daily=100, streams=1))
    quotas.used(account, TODAY, 30)
    quotas.restore("old", 50, TODAY, [account])
    quotas.restore("old", 50, TODAY, [account])
    held = quotas.reserve(0, "a", want(5, None), TODAY, [account])
    assert isinstance(held, Reservation)
    assert held.total == 20
    assert held.bound == Refusal("daily", "t", 100)
    quotas.settle(0, "old", 10)
    quotas.settle(0, "a", 20)
    assert (account.days[1].used, account.days[1].reserved, account.streams) == (60, 0, 0)


def test_gauges_are_of_the_window_with_least_left() -> None:
    quotas, account = one(Limits(requests=60, tokens=1_000))
    other = quotas.account(0, "k", Limits(requests=10))
    assert gauges(0, [quotas.account(0, "n", Limits())]) == (None, None)
    quotas.reserve(0, "a", want(50, 50), TODAY, [account, other])
    assert gauges(0, [account, other]) == (Gauge(10, 9, 6_000), Gauge(1_000, 900, 6_000))
    quotas.settle(0, "a", 2_000)
    assert gauges(0, [account])[1] == Gauge(1_000, 0, 120_000), "debt is nothing left, and takes longer"


def test_limits_that_come_and_go_under_a_running_request() -> None:
    quotas, account = one(Limits())
    quotas.reserve(0, "a", want(), TODAY, [account])
    quotas.account(0, "t", Limits(tokens=100, requests=3))
    quotas.adjust(0, "a", 5)
    assert level(account) == 100
    quotas.settle(0, "a", 30, unused=True)
    assert level(account) == 70, "nothing had been taken: all that was used is"
    assert account.requests is not None
    assert account.requests.level(0) == 3
    quotas.reserve(0, "b", want(), TODAY, [account])
    quotas.account(0, "t", Limits())
    quotas.settle(0, "b", 20)
    assert account.tokens is None


def test_the_same_request_twice_is_a_fault_of_the_caller() -> None:
    quotas, account = one(Limits())
    quotas.reserve(0, "a", want(), TODAY, [account])
    with pytest.raises(ValueError, match="has a reservation"):
        quotas.reserve(0, "a", want(), TODAY, [account])


LIMITS = st.builds(
    Limits,
    requests=st.sampled_from([0, 1, 7, 100]),
    tokens=st.sampled_from([0, 50, 1_000, 2**50]),
    streams=st.sampled_from([0, 2, 9]),
    long_prompts=st.sampled_from([0, 1, 3]),
    daily=st.sampled_from([0, 60, 5_000]),
    monthly=st.sampled_from([0, 90, 20_000]),
    strict=st.booleans(),
)


class Machine(RuleBasedStateMachine):
    """Any order of requests, counts, ends, passing time and clocks that go back, over three accounts."""

    def __init__(self) -> None:
        super().__init__()
        self.quotas, self.now, self.latest, self.number = Quotas(), 0, 0, 0
        self.periods = TODAY
        self.accounts: list[Account] = []
        self.running: dict[str, tuple[Reservation, list[Account]]] = {}
        self.charged: list[int] = []
        self.used = [0, 0, 0]
        self.excess = [0, 0, 0]

    @precondition(lambda self: not self.accounts)
    @rule(limits=st.lists(LIMITS, min_size=3, max_size=3))
    def begin(self, limits: list[Limits]) -> None:
        self.accounts = [self.quotas.account(0, name, limit) for name, limit in zip("tkm", limits, strict=True)]

    @precondition(lambda self: self.accounts)
    @rule(
        prompt=st.integers(1, 300),
        more=st.integers(0, 300),
        asked=st.none() | st.integers(1, 400),
        room=st.integers(1, 500),
        usual=st.integers(1, 300),
        choices=st.integers(1, 3),
        context=st.sampled_from([0, 100, 700]),
        long=st.booleans(),
        whose=st.sets(st.integers(0, 2), min_size=1),
    )
    def ask(self, whose: set[int], **asked: Any) -> None:
        more = asked.pop("more")
        wish = Want(prompt_most=asked["prompt"] + more, **asked)
        accounts = [self.accounts[n] for n in sorted(whose)]
        before = self.state()
        name = f"r{self.number}"
        answer = self.quotas.reserve(self.now, name, wish, self.periods, accounts)
        self.number += 1
        if isinstance(answer, Reservation):
            self.running[name] = (answer, accounts)
            return
        assert self.state() == before, "a refusal changes nothing"
        if answer.wait_ms is not None:
            assert answer.wait_ms > 0
            later = self.latest + answer.wait_ms
            assert isinstance(self.quotas.reserve(later - 1, name, wish, self.periods, accounts), Refusal)
            let_in = self.quotas.reserve(later, name, wish, self.periods, accounts)
            assert isinstance(let_in, Reservation)
            self.now = self.latest = later
            self.running[name] = (let_in, accounts)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.quotas.leave(data.draw(st.sampled_from(sorted(self.running))))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), share=st.integers(0, 100), output=st.none() | st.integers(1, 300), long=st.booleans())
    def count(self, data: st.DataObject, share: int, output: int | None, long: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        held, _ = self.running[name]
        if held.want.least < held.total:
            prompt = min(held.want.prompt_most, held.total - held.want.choices)
            self.quotas.adjust(self.now, name, max(1, prompt * share // 100), output=output, long=long)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), share=st.integers(0, 100), unused=st.booleans())
    def end(self, data: st.DataObject, share: int, unused: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        held, _ = self.running.pop(name)
        charged = held.total * share // 100
        for hold in held.holds:
            at = self.accounts.index(hold.account)
            self.used[at] += charged
            self.excess[at] += max(0, charged - hold.rate)
        assert self.quotas.settle(self.now, name, charged, unused=unused)
        state = self.state()
        assert not self.quotas.settle(self.now, name, charged, unused=unused)
        assert self.state() == state

    @rule(passed=st.integers(-5_000, 90_000))
    def wait(self, passed: int) -> None:
        self.now = max(0, self.now + passed)
        self.latest = max(self.latest, self.now)

    @rule(month=st.booleans())
    def next_period(self, month: bool) -> None:
        self.periods = Periods(self.periods.day + 1, self.periods.month + month)

    def state(self) -> Any:
        levels = [account.tokens and account.tokens.level(self.latest) for account in self.accounts]
        counts = [account.requests and account.requests.level(self.latest) for account in self.accounts]
        books = [(account.streams, repr(account.days), repr(account.months)) for account in self.accounts]
        return levels, counts, books, len(self.quotas)

    @invariant()
    def budgets_are_never_exceeded(self) -> None:
        for account in self.accounts:
            for books, limit in ((account.days, account.limits.daily), (account.months, account.limits.monthly)):
                for budget in books.values():
                    assert budget.reserved >= 0
                    assert not limit or budget.used + budget.reserved <= limit

    @invariant()
    def streams_stay_within_their_bound(self) -> None:
        for account in self.accounts:
            assert 0 <= account.streams <= (account.limits.streams or account.streams)
            assert account.long_prompts >= 0

    @invariant()
    def who_is_strict_never_owes(self) -> None:
        for account in self.accounts:
            if account.tokens is not None and account.limits.strict:
                assert level(account, self.latest) >= 0

    @invariant()
    def nobody_gets_more_than_the_window_and_what_was_underestimated(self) -> None:
        for at, account in enumerate(self.accounts):
            limit = account.limits.tokens
            if limit:
                allowed = limit + limit * self.latest // 60_000 + self.excess[at]
                assert self.used[at] <= allowed

    @invariant()
    def when_all_is_over_nothing_is_held(self) -> None:
        if not self.running:
            assert len(self.quotas) == 0
            assert all(account.streams == account.long_prompts == 0 for account in self.accounts)
            books = [book for account in self.accounts for book in (account.days, account.months)]
            assert all(budget.reserved == 0 for book in books for budget in book.values())
            assert all(len(book) <= 2 for book in books)


Machine.TestCase.settings = settings(
    max_examples=2_000 if PROVE else 100, stateful_step_count=50 if PROVE else 30, deadline=None
)
TestQuotas = pytest.mark.timeout(1_800 if PROVE else 300)(Machine.TestCase)
