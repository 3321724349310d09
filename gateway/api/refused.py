"""Fields that would change the answer in a way that no model here can honour: refused by name, never dropped.

What merely hints (service_tier, prediction, prompt_cache_key, safety_identifier, parallel_tool_calls, store, ...) is
ignored instead: the answer is the same without it. A neutral value asks for nothing and passes.
"""

from typing import Any, Final, NamedTuple

from shared.errors import InvalidRequestError


class Rule(NamedTuple):
    """A field, the values that ask for nothing, and what to do instead."""

    field: str
    neutral: tuple[Any, ...]
    why: str


CHAT: Final = (
    Rule("functions", ([],), "Use 'tools' instead."),
    Rule("function_call", (), "Use 'tool_choice' instead."),
    Rule("modalities", ([], ["text"]), "Only text can be generated."),
    Rule("audio", (), "Only text can be generated."),
    Rule("web_search_options", (), "There is no web search."),
    Rule("reasoning_effort", ("none",), "No model here has an adjustable reasoning effort."),
    Rule("verbosity", ("medium",), "No model here has an adjustable verbosity."),
    Rule("moderation", (), "There is no moderation."),
)
TEXT: Final = (
    Rule("echo", (False,), "The prompt is not echoed."),
    Rule("suffix", ("",), "Text cannot be inserted before a suffix."),
)
MESSAGE: Final = (
    Rule("function_call", (), "Use 'tool_calls' instead."),
    Rule("audio", (), "Only text can be read."),
)


def refuse(body: Any, rules: tuple[Rule, ...], prefix: str = "") -> None:
    """Raise InvalidRequestError (unsupported_parameter) for the first field of `body` that a rule forbids."""
    for field, neutral, why in rules:
        value = getattr(body, field)
        if value is not None and value not in neutral:
            param = prefix + field
            raise InvalidRequestError(
                f"Unsupported parameter: '{param}'. {why}", code="unsupported_parameter", param=param
            )
