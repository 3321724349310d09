"""The tenants' routes, OpenAI's by path and shape."""

from typing import Any

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import ASGIApp

from gateway.context import House
from gateway.encode import ModelCard, model_card, model_list
from gateway.http.stream import Answering, AsgiExchange
from gateway.services.keyring import Principal
from gateway.steps.authenticate import identify
from shared.errors import NotFoundError

Asked = Request[Any, Any, Any]


def openai_routes(house: House) -> list[HTTPRouteHandler]:
    """All of them, over one house; closures, since dependency injection costs a twentieth of a short request."""

    @post("/v1/chat/completions", status_code=200)
    async def chat_completions() -> ASGIApp:
        """Answer a conversation, streamed or whole."""
        return Answering(house, "chat")

    @post("/v1/completions", status_code=200)
    async def completions() -> ASGIApp:
        """Continue a text, streamed or whole."""
        return Answering(house, "completion")

    @get("/v1/models")
    async def list_models(request: Asked) -> Response[bytes]:
        """The models that this key may use: configured or announced by a worker."""
        allows = _identify(house, request).rules.allows
        names = sorted(filter(allows, house.fleet.models() | {entry.name for entry in house.settings.models}))
        return _json(model_list(ModelCard(id=name, created=house.created) for name in names))

    @get("/v1/models/{model:path}")
    async def get_model(request: Asked, model: FromPath[str]) -> Response[bytes]:
        """One model; one that this key may not use does not exist."""
        rules, name = _identify(house, request).rules, model.removeprefix("/")
        known = name in house.fleet.models() or any(entry.name == name for entry in house.settings.models)
        if not known or not rules.allows(name):
            raise NotFoundError(
                f"The model '{name}' does not exist or you do not have access to it.",
                code="model_not_found",
                param="model",
            )
        return _json(model_card(ModelCard(id=name, created=house.created)))

    return [chat_completions, completions, list_models, get_model]


def _identify(house: House, request: Asked) -> Principal:
    return identify(house, AsgiExchange(request.scope, request.receive, request.send))


def _json(body: bytes) -> Response[bytes]:
    return Response(body, media_type="application/json")
