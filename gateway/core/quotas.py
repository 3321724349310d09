"""What a request may use, and what it has used: rate windows, budgets and streams of its tenant, key and model. Pure.

A request reserves before it runs and settles when it is over, once, whatever happened in between:

- Rate windows reserve what is likely (the prompt, and the output that was asked for or that is usual) and settle with
  what was charged; what exceeds the reservation is debt that later requests wait for. A strict account reserves the
  most that may come, and never owes.
- Budgets always reserve the most that may come, so they are never exceeded.
- Streams, and requests with a long prompt, are counted until the request's client is gone or has its answer (`leave`):
  earlier than it settles, if a worker has still to say what it used.

The most that may come is `Reservation.total`: prompt and output of all choices together, no more than any window holds
and any budget has left. A gateway does not count tokens before a worker does: it works with a likely prompt and one
that is certain not to be exceeded, and whoever does count holds the request to its total (`adjust` says what came out).

A reservation settles in the periods in which it was made. Units and clocks are those of `gateway.core.accounts`.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gateway.core.accounts import Account, Budget, Limits, Periods, Scope, Why


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for, in tokens. Its prompt is likely `prompt`, certainly at most `prompt_most`.

    `asked` is its own max_tokens, `room` the most that its model gives for one choice, `usual` what one choice usually
    takes. The prompt counts once, however many `choices` there are. Prompt and one output fit into `context` together;
    0 is no bound. `long`: the prompt is one of those that a tenant may have only so many of at once.
    """

    prompt: int
    prompt_most: int
    asked: int | None
    room: int
    usual: int
    choices: int = 1
    context: int = 0
    long: bool = False

    @property
    def least(self) -> int:
        """What it cannot do without: its prompt, as far as that is known, and a token for each choice."""
        return (self.prompt if self.prompt == self.prompt_most else 1) + self.choices


class Refusal(msgspec.Struct, frozen=True):
    """Why not, by whose limit, and when the same request would be let in if nobody else came.

    `wait_ms` is `None` where waiting is no help: the request is too large, a stream has to end, or a budget has to
    begin anew, which the caller knows the time of.
    """

    why: Why
    scope: Scope
    limit: int
    wait_ms: int | None = None


class Hold(msgspec.Struct):
    """What one account gave for one reservation; 0 where it had no limit then, of which nothing can go back."""

    account: Account
    day: Budget
    month: Budget
    request: int = 0
    rate: int = 0


class Reservation(msgspec.Struct):
    """What a request holds: `total` tokens at the most, in every budget of `holds`.

    `window` is the smallest token window that it has to fit into, 0 if there is none. `bound` is the limit for which
    `total` is less than the request would have taken. `inside` while its streams are counted.
    """

    want: Want
    total: int
    periods: Periods
    holds: list[Hold]
    window: int = 0
    bound: Refusal | None = None
    inside: bool = True


class Quotas:
    """Every account of one gateway, and what is reserved on them."""

    def __init__(self) -> None:
        self._accounts: dict[Scope, Account] = {}
        self._held: dict[str, Reservation] = {}

    def __len__(self) -> int:
        return len(self._held)

    def accounts(self) -> Iterable[Account]:
        """All of them."""
        return self._accounts.values()

    def held(self, request: str) -> Reservation | None:
        """What a request holds, if it is in."""
        return self._held.get(request)

    def account(self, now_ms: int, scope: Scope, limits: Limits) -> Account:
        """The account of `scope`, which has these limits from now on."""
        account = self._accounts.get(scope)
        if account is None:
            account = self._accounts[scope] = Account(scope)
        if account.limits != limits:
            account.limit(now_ms, limits)
        return account

    def reserve(
        self, now_ms: int, request: str, want: Want, periods: Periods, accounts: Sequence[Account]
    ) -> Reservation | Refusal:
        """Let `request` in, or say why not and change nothing. All accounts must agree.

        Raises:
            ValueError: `request` is in already.
        """
        if request in self._held:
            raise ValueError(f"{request} has a reservation already")
        held = _total(want, periods, accounts)
        if isinstance(held, Refusal):
            return held
        refusal = _refused(now_ms, want, held.total, accounts)
        if refusal is not None:
            return refusal
        for account in accounts:
            held.holds.append(_hold(now_ms, account, held))
        self._held[request] = held
        return held

    def restore(self, request: str, total: int, periods: Periods, accounts: Sequence[Account]) -> None:
        """A request of an earlier life, of which it is not known yet what it used: it keeps its part of the budgets."""
        if request in self._held:
            return
        held = Reservation(Want(prompt=0, prompt_most=0, asked=None, room=0, usual=0, choices=0), total, periods, [])
        held.inside = False
        for account in accounts:
            hold = Hold(account, *account.budgets(periods))
            hold.day.reserved += total
            hold.month.reserved += total
            held.holds.append(hold)
        self._held[request] = held

    def used(self, account: Account, periods: Periods, tokens: int) -> None:
        """Tokens of an earlier life count in the budgets of `periods`."""
        for budget in account.budgets(periods):
            budget.used += tokens
        account.forget()

    def adjust(self, now_ms: int, request: str, prompt: int, *, output: int | None = None, long: bool = False) -> None:
        """Its prompt was counted: `prompt` tokens, and each choice can take at most `output`.

        Whatever was reserved for more goes back. Unknown: nothing.
        """
        held = self._held.get(request)
        if held is None:
            return
        was = held.want
        room = was.room if output is None else min(was.room, output)
        held.want = msgspec.structs.replace(was, prompt=prompt, prompt_most=prompt, room=room, long=long)
        if held.inside and long != was.long:
            for hold in held.holds:
                hold.account.long_prompts += 1 if long else -1
        less = held.total - min(held.total, _most(held.want))
        held.total -= less
        for hold in held.holds:
            if hold.rate and hold.account.tokens is not None:
                rate = _rate(hold.account, held.want, held.total)
                hold.account.tokens.give(now_ms, hold.rate - rate)
                hold.rate = rate
            hold.day.reserved -= less
            hold.month.reserved -= less

    def leave(self, request: str) -> None:
        """Its client has its answer, or is gone: its streams are free. Again, or unknown: nothing."""
        held = self._held.get(request)
        if held is None or not held.inside:
            return
        held.inside = False
        for hold in held.holds:
            hold.account.streams -= held.want.choices
            hold.account.long_prompts -= held.want.long

    def settle(self, now_ms: int, request: str, charged: int, *, unused: bool = False) -> bool:
        """`request` is over and pays for `charged` tokens. Again, or for one that is unknown: nothing, and False.

        `unused`: it failed by no doing of its own, so that it does not count as a request either.
        """
        self.leave(request)
        held = self._held.pop(request, None)
        if held is None:
            return False
        for hold in held.holds:
            account = hold.account
            if account.requests is not None and unused:
                account.requests.give(now_ms, hold.request)
            if account.tokens is not None:
                account.tokens.give(now_ms, hold.rate - charged)
            for budget in (hold.day, hold.month):
                budget.reserved -= held.total
                budget.used += charged
            account.forget()
        return True


def _most(want: Want) -> int:
    """All that may come of a request, whatever its prompt turns out to be.

    With n choices that share one prompt: max over 1 <= p <= prompt_most of p + n * min(output, context - p).
    """
    output = want.room if want.asked is None else min(want.asked, want.room)
    if not want.context:
        return want.prompt_most + want.choices * output
    if want.prompt == want.prompt_most:
        return want.prompt + want.choices * max(0, min(output, want.context - want.prompt))
    output = min(output, want.context - 1)  # a prompt has a token at least
    if want.choices == 1:
        return min(want.prompt_most + output, want.context)
    return min(want.prompt_most, want.context - output) + want.choices * output


def _total(want: Want, periods: Periods, accounts: Sequence[Account]) -> Reservation | Refusal:
    """The most that may come and that every account can give at all, however long one waits; nothing is held yet."""
    held = Reservation(want, _most(want), periods, [])
    explicit = want.least + (0 if want.asked is None else want.choices * (want.asked - 1))
    for account in accounts:
        if not account.bounded:
            continue
        limits = account.limits
        if limits.tokens:
            if explicit > limits.tokens:
                return Refusal("too_large", account.scope, limits.tokens)
            held.window = min(held.window or limits.tokens, limits.tokens)
            _cut(held, limits.tokens, Refusal("too_large", account.scope, limits.tokens))
        for why, limit, left in account.left(periods):
            refusal = Refusal(why, account.scope, limit)
            if want.least > left:
                return refusal
            _cut(held, left, refusal)
    return held


def _cut(held: Reservation, most: int, bound: Refusal) -> None:
    if most < held.total:
        held.total, held.bound = most, bound


def _refused(now_ms: int, want: Want, total: int, accounts: Sequence[Account]) -> Refusal | None:
    """Whose limit keeps it out now: of several the one that takes longest, one that no wait helps before all."""
    worst: Refusal | None = None
    for account in accounts:
        if not account.bounded:
            continue
        limits = account.limits
        if limits.streams and account.streams + want.choices > limits.streams:
            return Refusal("concurrency", account.scope, limits.streams)
        if want.long and limits.long_prompts and account.long_prompts >= limits.long_prompts:
            return Refusal("long_prompts", account.scope, limits.long_prompts)
        for why, bucket, amount in account.windows(_rate(account, want, total)):
            wait_ms = bucket.wait_ms(now_ms, amount)
            if wait_ms > (0 if worst is None else worst.wait_ms or 0):
                worst = Refusal(why, account.scope, bucket.limit, wait_ms)
    return worst


def _rate(account: Account, want: Want, total: int) -> int:
    """What a reservation takes out of an account's token window."""
    if account.limits.strict:
        return total
    output = want.usual if want.asked is None else want.asked
    return min(total, want.prompt + want.choices * min(output, want.room))


def _hold(now_ms: int, account: Account, held: Reservation) -> Hold:
    hold = Hold(account, *account.budgets(held.periods))
    account.streams += held.want.choices
    account.long_prompts += held.want.long
    if account.requests is not None:
        hold.request = 1
        account.requests.take(now_ms, hold.request)
    if account.tokens is not None:
        hold.rate = _rate(account, held.want, held.total)
        account.tokens.take(now_ms, hold.rate)
    hold.day.reserved += held.total
    hold.month.reserved += held.total
    return hold
