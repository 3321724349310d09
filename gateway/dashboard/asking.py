"""What the rooms share: reading an address, asking before a change, and pointing to its record afterwards."""

from typing import Any, Final, Literal
from urllib.parse import urlencode

import msgspec
from litestar import Response
from litestar.datastructures import FormMultiDict
from litestar.response import Template

from gateway.core.audit import Entry
from gateway.dashboard.door import see_other
from gateway.dashboard.pages import Asked, page, who
from gateway.store.audit import Filter
from gateway.store.store import Store
from shared.errors import InvalidRequestError

BIGGEST: Final = 2**53
_LONGEST: Final = 1024


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked before a change: its `effects` in sentences, and in `changes` what is now and what will be.

    `fields` are sent again with the answer, and the version with them. Where something is lost for good, its name has
    to be `typed`.
    """

    title: str
    effects: tuple[str, ...]
    button: str
    action: str
    back: str
    fields: dict[str, str]
    changes: tuple[tuple[str, str, str], ...] = ()
    typed: str = ""
    grave: bool = False
    why: str = ""


def ask(request: Asked, store: Store, form: FormMultiDict, question: Question, *, status: int = 200) -> Template:
    """The page that asks. The change is meant for the version that the form was made from, not for that of now."""
    fields = question.fields | {"version": str(version_of(form))}
    return page(request, "confirm.html", store.now_ms, status=status, question=question, fields=fields)


def confirmed(form: FormMultiDict) -> bool:
    """Whether this form is the answer to the question."""
    return form.get("confirm") == "yes"


def said(request: Asked, name: str, most: int = _LONGEST) -> str:
    """A part of the address's query, without the space around it. Raises InvalidRequestError if it is too long."""
    value = str(request.query_params.get(name, "")).strip()
    if len(value) > most:
        raise InvalidRequestError(f"{name} is longer than {most} characters.", param=name)
    return value


def whole(text: str, what: str) -> int:
    """A whole number from 0, with or without marks between its thousands; nothing is 0. Raises InvalidRequestError."""
    digits = text.translate({ord(mark): None for mark in ", _'\u00a0\u202f"})
    if not digits:
        return 0
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(BIGGEST)) or int(digits) > BIGGEST:
        raise InvalidRequestError(f"{what} must be a whole number from 0 to {BIGGEST:,}, not {text!r}.", param=what)
    return int(digits)


def version_of(form: FormMultiDict) -> int:
    """Which version of a row a change is meant for. Raises InvalidRequestError if the form does not say."""
    text = str(form.get("version", ""))
    if not text.isascii() or not text.isdigit() or len(text) > 9:  # noqa: PLR2004
        raise InvalidRequestError("The form does not say which version it is about. Load the page anew.")
    return int(text)


async def done(request: Asked, store: Store, kind: Literal["tenant", "key", "quota"], target: str) -> Response[Any]:
    """Back to `target`, which shows the entry of the change just made."""
    entries = await store.audit.page(Filter(kind=kind, actor=who(request).name), before=None, most=1)
    mark = f"{'&' if '?' in target else '?'}entry={entries[0].sequence}" if entries else ""
    return see_other(target + mark)


async def just_made(request: Asked, store: Store) -> Entry | None:
    """The entry that the address points to."""
    number = said(request, "entry")
    if not (number.isascii() and number.isdigit()) or len(number) > 15:  # noqa: PLR2004
        return None
    found = await store.audit.page(Filter(), before=int(number) + 1, most=1)
    # Whoever was given such an address by somebody else has changed nothing.
    mine = bool(found) and found[0].sequence == int(number) and found[0].actor_id == who(request).id
    return found[0] if mine else None


def with_query(path: str, **query: str) -> str:
    """An address with those parts of a query that are not empty."""
    told = urlencode({name: value for name, value in query.items() if value})
    return f"{path}?{told}" if told else path
