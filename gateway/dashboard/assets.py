"""Styles and scripts, each under an address that has the hash of its content: kept for ever, and never stale."""

import hashlib
from pathlib import Path
from typing import Annotated, Final

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter

from shared.errors import NotFoundError

PREFIX: Final = "/assets"
DIRECTORY: Final = Path(__file__).with_name("static")
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HASH_CHARS: Final = 16

File = Annotated[str, PathParameter(max_length=100)]


class Asset(msgspec.Struct, frozen=True):
    """One file."""

    address: str
    content: bytes
    media_type: str


def _read() -> dict[str, Asset]:
    found = {}
    for path in sorted(DIRECTORY.iterdir()):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:_HASH_CHARS]
            address = f"{PREFIX}/{path.stem}.{digest}{path.suffix}"
            found[path.name] = Asset(address, content, _TYPES[path.suffix])
    return found


ASSETS: Final = _read()
"""By file name; read once, when this module is."""
_BY_ADDRESS: Final = {asset.address: asset for asset in ASSETS.values()}


def address(name: str) -> str:
    """Where a file of `static/` is served. Raises KeyError if there is none of that name."""
    return ASSETS[name].address


def asset_route() -> HTTPRouteHandler:
    """One route for all of them; they are the same for everybody and need no login."""

    @get(f"{PREFIX}/{{file:str}}", opt={"open": True}, include_in_schema=False)
    async def asset(file: File) -> Response[bytes]:
        """A file of this release. Another release has another address for one that differs."""
        found = _BY_ADDRESS.get(f"{PREFIX}/{file}")
        if found is None:
            raise NotFoundError(f"There is no file {file!r}.")
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(found.content, media_type=found.media_type, headers=headers)

    return asset
