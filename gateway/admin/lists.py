"""Lists over HTTP: so many rows at once, and a cursor for the next ones that says nothing to anybody else."""

import base64
import binascii
from typing import Annotated, Final, Generic, TypeVar

import msgspec
from litestar.params import QueryParameter

from gateway.store.pages import Page, Place
from shared.errors import InvalidRequestError

T = TypeVar("T")

MOST: Final = 200
_BIGGEST: Final = 2**63 - 1

Limit = Annotated[int, QueryParameter(ge=1, le=MOST, description="So many at once.")]
After = Annotated[
    str | None,
    QueryParameter(max_length=1024, description="`next` of the answer before, for the page that follows it."),
]


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """One page. `next` goes into `after` for the following one; null on the last."""

    data: tuple[T, ...]
    next: str | None


def listing(page: Page[T]) -> Listing[T]:
    """A page of the store as it is shown."""
    return Listing(page.rows, None if page.after is None else cursor(page.after))


def cursor(place: Place) -> str:
    """A place in a list, for an address."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def place(after: str | None, *types: type[str] | type[int]) -> Place | None:
    """The place that a cursor says, of those types.

    Raises:
        InvalidRequestError: It is no cursor of this list.
    """
    if after is None:
        return None
    try:
        said = base64.b64decode(after + "=" * (-len(after) % 4), altchars=b"-_", validate=True)
        found = msgspec.json.decode(said, type=list[str | int])
    except (binascii.Error, msgspec.DecodeError, ValueError):
        found = []
    if tuple(map(type, found)) != types or not all(map(_possible, found)):
        raise InvalidRequestError("after is no cursor of this list.", code="invalid_cursor", param="after")
    return tuple(found)


def _possible(value: str | int) -> bool:
    return "\0" not in value if isinstance(value, str) else abs(value) <= _BIGGEST
