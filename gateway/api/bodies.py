"""What is read of a request body. Anything not listed is ignored; null counts as absent.

Types are as wide as they must be for our own checks to give the better message: a missing role is found in `chat`, not
by the decoder. Fields that are only ever refused are listed in `refused`.
"""

from typing import Any

import msgspec


class Common(msgspec.Struct, kw_only=True):
    """Fields of both endpoints."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: "StreamOptions | None" = None
    user: str | None = None
    response_format: "ResponseFormat | None" = None
    # Extensions, named as other open servers name them.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    priority: str | None = None
    session_id: str | None = None


class StreamOptions(msgspec.Struct):
    """How to stream."""

    include_usage: bool | None = None


class JsonSchema(msgspec.Struct):
    """The `json_schema` of a response format. Constraining is always strict."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """A constraint on the answer. A bare `schema` beside json_object is how some open servers spell json_schema."""

    type: str | None = None
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class Part(msgspec.Struct):
    """One piece of a message's content."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct):
    """Which function the model called; `arguments` is JSON as the model wrote it, so possibly not JSON at all."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    """A call that an earlier answer made."""

    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None


class Message(msgspec.Struct):
    """One message of a chat."""

    role: str | None = None
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    function_call: Any = None
    audio: Any = None


class Function(msgspec.Struct):
    """A function on offer; `parameters` is a JSON schema."""

    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool on offer. Only functions are known."""

    type: str | None = None
    function: Function | None = None


class NamedFunction(msgspec.Struct):
    """The function that a tool choice names."""

    name: str | None = None


class ToolChoice(msgspec.Struct):
    """A tool choice that names its tool."""

    type: str | None = None
    function: NamedFunction | None = None


class ChatBody(Common, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    # Checked for their type, of no effect here.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    parallel_tool_calls: bool | None = None
    # Refused, unless neutral.
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    moderation: Any = None


class TextBody(Common, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[int | str | list[int]] | None = None
    logprobs: int | None = None
    # Refused, unless neutral.
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None


chat_decoder = msgspec.json.Decoder(ChatBody)
text_decoder = msgspec.json.Decoder(TextBody)
