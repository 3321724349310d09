"""Versions over HTTP (RFC 9110): a row's version is its ETag, and a change says with If-Match which one it means."""

import re
from typing import Annotated, Final

from litestar.params import HeaderParameter

from gateway.admin.problems import PreconditionRequiredError
from shared.errors import InvalidRequestError, StaleRecordError

IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        required=False,
        max_length=64,
        description="The ETag of what is to be changed, as it was read; `*` for whatever it is now. Needed: 428.",
    ),
]
IfNoneMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-None-Match",
        required=False,
        max_length=64,
        description="`*`, in place of If-Match, where nothing must be there yet.",
    ),
]

_TAG: Final = re.compile(r'\s*(W/)?"([^"\x00-\x1f\x7f]*)"\s*')
_VERSION: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


def etag(version: int) -> dict[str, str]:
    """The header of an answer."""
    return {"etag": f'"{version}"'}


def expected(if_match: str | None, if_none_match: str | None = None) -> int | None:
    """The version that a change is meant for; `None` for whatever is there, 0 for nothing.

    Raises:
        PreconditionRequiredError: It was not said.
        InvalidRequestError: It is no entity tag.
        StaleRecordError: It is none that anything here ever had.
    """
    if if_none_match is not None:
        if if_none_match.strip() != "*" or if_match is not None:
            raise InvalidRequestError("If-None-Match is * here, and comes without If-Match.", param="If-None-Match")
        return 0
    if if_match is None:
        raise PreconditionRequiredError("Say with If-Match which version is to be changed: its ETag, or *.")
    if if_match.strip() == "*":
        return None
    found = _TAG.fullmatch(if_match)
    if found is None:
        raise InvalidRequestError('If-Match must be one entity tag such as "3", or *.', param="If-Match")
    weak, tag = found.groups()
    if weak or _VERSION.fullmatch(tag) is None:  # weak ones never match (RFC 9110, 13.1.1)
        raise StaleRecordError(f"nothing here has the entity tag {if_match.strip()}")
    return int(tag)
