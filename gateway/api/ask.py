"""What a request asks for, whichever endpoint and spelling it came by."""

from typing import Any, Final

import msgspec

from shared.errors import InvalidRequestError
from shared.wire import Grammar, InputKind, Sampling, ServiceClass


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One validated request.

    `input` is a list of messages (kind chat), a string (text) or a list of token ids (ids). A message is a plain dict:
    `role` (system, user, assistant or tool) and `content` (a string) always, `name`, `tool_calls`, `tool_call_id` where
    sent. `logprobs` is None for none, else how many alternatives to report beside the chosen token. `max_tokens` None
    means as many as the context leaves. `n` choices share one prompt.
    """

    kind: InputKind
    model: str
    input: Any
    tools: list[dict[str, Any]] | None = None
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    n: int = 1
    seed: int | None = None
    logprobs: int | None = None
    grammar: Grammar | None = None
    stream: bool = False
    include_usage: bool = False
    service_class: ServiceClass = "interactive"
    session_id: str | None = None
    user: str | None = None

    @property
    def input_param(self) -> str:
        """The request field that `input` came from, for error messages."""
        return "messages" if self.kind == "chat" else "prompt"


# The request field to name when a model version does not announce a feature.
_FEATURE_PARAM: Final = {
    "tools": "tools",
    "logprobs": "logprobs",
    "json_object": "response_format",
    "json_schema": "response_format",
}


def needs(ask: Ask) -> frozenset[str]:
    """Features that a model version must announce to serve `ask`: tools, logprobs, json_object, json_schema.

    A history that holds tool calls or their results needs a template with tools as much as a request that offers some.
    """
    found = []
    if ask.tools or (ask.kind == "chat" and any(m["role"] == "tool" or "tool_calls" in m for m in ask.input)):
        found.append("tools")
    if ask.logprobs is not None:
        found.append("logprobs")
    if ask.grammar is not None:
        found.append(ask.grammar.kind)
    return frozenset(found)


def lacks(ask: Ask, missing: frozenset[str]) -> InvalidRequestError:
    """The error for a model that does not have some of what `needs(ask)` found; names one field, always the same."""
    feature = min(missing)
    param = _FEATURE_PARAM.get(feature, feature)
    if feature == "tools" and not ask.tools:
        param = "messages"
    return InvalidRequestError(
        f"The model '{ask.model}' does not support {feature}.", code="unsupported_value", param=param
    )
