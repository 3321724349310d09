"""One request, from the first header to the last byte: read this first.

    accept -> authenticate -> resolve -> budget -> choose -> dispatch -> relay -> settle

Steps 5 and 6 run once per choice, side by side with the relay, which holds the client's status line until a worker has
accepted. However a request ends (answered, refused, timed out, its client gone), `settle` runs last.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.context import Endpoint, Exchange, House, Passage
from gateway.outcome import late
from gateway.steps import accept, authenticate, budget, choose, dispatch, relay, resolve, settle
from shared.errors import ClientGoneError, HttpError
from shared.tracing import Trace


async def run(house: House, exchange: Exchange, endpoint: Endpoint, request_id: str, trace: Trace) -> None:
    """Serve one request. Raises HttpError while nothing was sent yet, ClientGoneError when nobody listens any more."""
    arrival = accept.accept(house, exchange, endpoint, request_id, asyncio.get_running_loop().time(), trace=trace)
    passage: Passage | None = None
    outcome = "internal_error"
    with house.meters.flight():
        try:
            async with _until(arrival.deadline):
                passage = await authenticate.authenticate(house, exchange, arrival)
                exchange.cancel_when_gone()
                who = passage.principal
                house.pulse.begun(passage, who.tenant_id, who.tenant_name, arrival.arrived)
                resolve.resolve(house, passage)
                with budget.reserved(house, passage):
                    async with _placed(house, passage):
                        await (relay.stream if passage.ask.stream else relay.collect)(house, exchange, passage)
            outcome = "ok"
        except asyncio.CancelledError:
            outcome = "client_left"
            if not exchange.gone:
                raise  # it is the process that ends, not the client that left
            raise ClientGoneError("the client left") from None
        except ClientGoneError:
            outcome = "client_left"
            raise
        except HttpError as error:
            outcome = error.code or "error"
            if not exchange.started:
                raise
            trace.failed(error)
            await relay.broken(exchange, error)
        finally:
            settle.settle(house, arrival, passage, outcome)


@asynccontextmanager
async def _placed(house: House, passage: Passage) -> AsyncIterator[None]:
    """Find a worker for each choice while the body of the `async with` relays; nothing is left running after it."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_place(house, passage, choice)) for choice in range(passage.ask.n)]
    try:
        yield
    finally:
        if running := [task for task in tasks if not task.done()]:
            for task in running:
                task.cancel()
            await asyncio.wait(running)


async def _place(house: House, passage: Passage, choice: int) -> None:
    """Steps 5 and 6 for one choice: ask for turns until a worker has taken the job. Failures reach the relay."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    ticket = choose.ticket(house, passage, began)
    passage.queued_from = passage.queued_from or began
    try:
        for number in itertools.count():
            wid = await choose.turn(house, passage, ticket, again=number > 0)
            passage.queued_s = max(passage.queued_s or 0.0, loop.time() - began)
            name = dispatch.AttemptName(choice, number)
            if await dispatch.dispatch(house, passage, ticket, wid, name) is not None:
                passage.inbox.accepted()
                return
    except Exception as error:  # noqa: BLE001 -- whatever it is, the relay raises it in the request's own task
        passage.inbox.fail(error)


@asynccontextmanager
async def _until(deadline: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise late() from None
