"""`POST /v1/chat/completions`: messages, tools, logprobs."""

import re
from typing import Any, Final

from gateway.api import refused
from gateway.api.ask import Ask
from gateway.api.bodies import ChatBody, Message, Part, Tool, ToolCall, ToolChoice, chat_decoder
from gateway.api.fields import INT32_MAX, LABEL_CHARS, TOP_LOGPROBS, between, common
from gateway.api.parse import body_of, invalid, missing, unsupported, wire_safe
from shared.settings import LimitSettings

TOOLS: Final = 128
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_PLAIN: Final = ("user", "system")
_FUNCTION_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def decode_chat(body: bytes, limits: LimitSettings) -> Ask:
    """Validate a chat request. Raises InvalidRequestError, and nothing else, for anything that `body` can hold."""
    chat = body_of(body, chat_decoder, limits.json_depth)
    refused.refuse(chat, refused.CHAT)
    shared = common(chat, limits)
    if chat.max_completion_tokens is not None:
        between("max_completion_tokens", chat.max_completion_tokens, 1, INT32_MAX)
        shared["max_tokens"] = chat.max_completion_tokens
    if not chat.messages:
        raise missing("messages") if chat.messages is None else invalid("messages", "expected at least one message.")
    if len(chat.messages) > limits.messages:
        raise invalid("messages", f"expected at most {limits.messages} messages, but got {len(chat.messages)}.")
    return Ask(
        kind="chat",
        input=[_message(message, index) for index, message in enumerate(chat.messages)],
        tools=_tools(chat),
        logprobs=_logprobs(chat),
        **shared,
    )


def _message(message: Message, index: int) -> dict[str, Any]:
    role = message.role
    content = message.content
    # Almost every message is just this, and all that follows would cost more than decoding the body did.
    if (
        isinstance(content, str)
        and role in _PLAIN
        and message.name is None
        and message.tool_calls is None
        and message.function_call is None
        and message.audio is None
    ):
        return {"role": role, "content": content}
    at = f"messages[{index}]"
    if role is None:
        raise missing(f"{at}.role")
    if role not in _ROLES:
        raise invalid(f"{at}.role", f"expected one of {', '.join(map(repr, _ROLES))}.")
    refused.refuse(message, refused.MESSAGE, f"{at}.")
    plain: dict[str, Any] = {"role": _ROLES[role], "content": _content(message, at)}
    if message.name is not None:
        if not 0 < len(message.name) <= LABEL_CHARS:
            raise invalid(f"{at}.name", f"expected 1 to {LABEL_CHARS} characters.")
        plain["name"] = message.name
    if message.tool_calls:
        if role != "assistant":
            raise invalid(f"{at}.tool_calls", "only allowed in messages with role 'assistant'.")
        plain["tool_calls"] = [_call(call, f"{at}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)]
    if role == "tool":
        if not message.tool_call_id:
            raise missing(f"{at}.tool_call_id")
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _content(message: Message, at: str) -> str:
    """Content as one string; parts are joined by line feeds, as llama.cpp and vLLM do for templates without parts."""
    content = message.content
    if isinstance(content, str):
        return content
    if content is not None:
        if not content:
            raise invalid(f"{at}.content", "expected at least one part.")
        return "\n".join(_part(part, message.role, f"{at}.content[{i}]") for i, part in enumerate(content))
    if message.role == "assistant" and (message.tool_calls or message.refusal is not None):
        return message.refusal or ""
    raise missing(f"{at}.content")


def _part(part: Part, role: str | None, at: str) -> str:
    match part.type:
        case None:
            raise missing(f"{at}.type")
        case "text":
            if part.text is None:
                raise missing(f"{at}.text")
            return part.text
        case "refusal" if role == "assistant":
            if part.refusal is None:
                raise missing(f"{at}.refusal")
            return part.refusal
        case "image_url" | "input_audio" | "file":
            raise unsupported(at, f"no model here takes content of type '{part.type}', only text.")
        case _:
            raise unsupported(at, "expected a part of type 'text'.")


def _call(call: ToolCall, at: str) -> dict[str, Any]:
    if not call.id:
        raise missing(f"{at}.id")
    _only_functions(call.type, f"{at}.type")
    if call.function is None:
        raise missing(f"{at}.function")
    if call.function.arguments is None:
        raise missing(f"{at}.function.arguments")
    name = _name(call.function.name, f"{at}.function.name")
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": call.function.arguments}}


def _tools(chat: ChatBody) -> list[dict[str, Any]] | None:
    """Tools on offer, as OpenAI writes them. None for none, for an empty list, and when the choice is 'none'."""
    tools = chat.tools or []
    if len(tools) > TOOLS:
        raise invalid("tools", f"expected at most {TOOLS} tools, but got {len(tools)}.")
    plain = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    choice = chat.tool_choice
    if isinstance(choice, ToolChoice) or choice == "required":
        if not plain:
            raise invalid("tool_choice", "only allowed when 'tools' are specified.")
        raise unsupported("tool_choice", "a call cannot be forced; use 'auto' or 'none'.")
    if choice not in (None, "auto", "none"):
        raise invalid("tool_choice", "expected 'none', 'auto', 'required' or an object.")
    return plain if plain and choice != "none" else None


def _tool(tool: Tool, at: str) -> dict[str, Any]:
    _only_functions(tool.type, f"{at}.type")
    function = tool.function
    if function is None:
        raise missing(f"{at}.function")
    plain: dict[str, Any] = {"name": _name(function.name, f"{at}.function.name")}
    for key in ("description", "parameters", "strict"):
        if (value := getattr(function, key)) is not None:
            plain[key] = value
    wire_safe(plain, f"{at}.function.parameters")
    return {"type": "function", "function": plain}


def _only_functions(kind: str | None, param: str) -> None:
    if kind is None:
        raise missing(param)
    if kind != "function":
        raise unsupported(param, "only 'function' is known.")


def _name(name: str | None, param: str) -> str:
    if name is None:
        raise missing(param)
    if not _FUNCTION_NAME.fullmatch(name):
        raise invalid(param, "expected 1 to 64 letters, digits, underscores, dots or dashes.")
    return name


def _logprobs(chat: ChatBody) -> int | None:
    if chat.top_logprobs is not None:
        if not chat.logprobs:
            raise invalid("top_logprobs", "only allowed when 'logprobs' is true.")
        between("top_logprobs", chat.top_logprobs, 0, TOP_LOGPROBS)
    return (chat.top_logprobs or 0) if chat.logprobs else None
