"""Checks of the fields that both endpoints share."""

from typing import Any, Final, cast

from gateway.api.bodies import Common, ResponseFormat
from gateway.api.parse import invalid, missing, unsupported, wire_safe
from shared.settings import LimitSettings
from shared.wire import Grammar, Sampling, ServiceClass

INT32_MAX: Final = 2**31 - 1
_INT64: Final = 2**63
MODEL_CHARS: Final = 256
LABEL_CHARS: Final = 512
BIASES: Final = 1024
TOP_LOGPROBS: Final = 20
_CLASSES: Final = ("interactive", "batch")
_NEUTRAL: Final = Sampling()


def between(param: str, value: float, low: float, high: float) -> None:
    """Raise InvalidRequestError unless `low` <= `value` <= `high`. NaN is not between anything."""
    if not low <= value <= high:
        bound = f">= {low}" if value < low else f"<= {high}"
        raise invalid(param, f"out of range, expected a value {bound}.")


def common(body: Common, limits: LimitSettings) -> dict[str, Any]:
    """The fields of an Ask that both endpoints share, checked."""
    if body.model is None:
        raise missing("model")
    if not body.model.strip() or len(body.model) > MODEL_CHARS:
        raise invalid("model", f"expected the id of a model, 1 to {MODEL_CHARS} characters.")
    if body.n is not None:
        between("n", body.n, 1, limits.choices)
    if body.seed is not None:
        between("seed", body.seed, -_INT64, _INT64 - 1)
    if body.max_tokens is not None:
        between("max_tokens", body.max_tokens, 1, INT32_MAX)
    if body.priority is not None and body.priority not in _CLASSES:
        raise invalid("priority", "expected 'interactive' or 'batch'.")
    for name in ("user", "session_id"):
        value = getattr(body, name)
        if value is not None and len(value) > LABEL_CHARS:
            raise invalid(name, f"expected at most {LABEL_CHARS} characters.")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "only allowed when 'stream' is true.")
    return {
        "model": body.model,
        "sampling": sampling(body),
        "stop": stops(body.stop, limits),
        "max_tokens": body.max_tokens,
        "n": body.n or 1,
        "seed": body.seed,
        "grammar": None if body.response_format is None else grammar(body.response_format),
        "stream": bool(body.stream),
        "include_usage": bool(body.stream_options and body.stream_options.include_usage),
        "service_class": cast("ServiceClass", body.priority or "interactive"),
        "session_id": body.session_id or None,
        "user": body.user,
    }


# (field, lowest, highest), both included; `repetition_penalty` must also be above zero.
_RANGES: Final = (
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("top_k", -1, INT32_MAX),
    ("min_p", 0, 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("repetition_penalty", 0, 2),
)


def sampling(body: Common) -> Sampling:
    """Sampling parameters; what is absent is neutral."""
    given: dict[str, Any] = {}
    for name, low, high in _RANGES:
        value = getattr(body, name)
        if value is not None:
            between(name, value, low, high)
            given[name] = value
    if given.get("repetition_penalty") == 0:
        raise invalid("repetition_penalty", "expected a value above 0.")
    if given.get("top_k") == -1:  # how vLLM's clients spell "off"
        given["top_k"] = 0
    if given.get("top_p") == 0:  # the smallest nucleus is the likeliest token; to some engines 0 means "off"
        given |= {"top_p": 1.0, "top_k": 1}
    if body.logit_bias:
        given["logit_bias"] = biases(body.logit_bias)
    return Sampling(**given) if given else _NEUTRAL


def biases(raw: dict[str, float]) -> dict[int, float]:
    """Token id -> bias. Whether the vocabulary has the id is the worker's to say."""
    if len(raw) > BIASES:
        raise invalid("logit_bias", f"expected at most {BIASES} entries.")
    found = {}
    for key, bias in raw.items():
        if not (key.isascii() and key.isdigit() and len(key) <= len(str(INT32_MAX)) and int(key) <= INT32_MAX):
            raise invalid("logit_bias", "expected token ids, written as decimal integers, for keys.")
        between("logit_bias", bias, -100, 100)
        found[int(key)] = bias
    return found


def stops(raw: str | list[str] | None, limits: LimitSettings) -> tuple[str, ...]:
    """Stop strings, in the order given; bounds are counted in UTF-8 bytes."""
    if raw is None:
        return ()
    strings = (raw,) if isinstance(raw, str) else tuple(raw)
    if len(strings) > limits.stop_strings:
        raise invalid("stop", f"expected at most {limits.stop_strings} strings, but got {len(strings)}.")
    for index, string in enumerate(strings):
        if not string or len(string.encode()) > limits.stop_bytes:
            param = "stop" if isinstance(raw, str) else f"stop[{index}]"
            raise invalid(param, f"expected 1 to {limits.stop_bytes} bytes.")
    return strings


def grammar(form: ResponseFormat) -> Grammar | None:
    """The constraint that a response format asks for. The schema is compiled, and refused if need be, by the worker."""
    match form.type:
        case None:
            raise missing("response_format.type")
        case "text":
            return None
        case "json_object" if form.schema is not None:
            return _schema(form.schema, "response_format.schema")
        case "json_object":
            return Grammar(kind="json_object")
        case "json_schema":
            if form.json_schema is None:
                raise missing("response_format.json_schema")
            if form.json_schema.schema is None:
                raise missing("response_format.json_schema.schema")
            return _schema(form.json_schema.schema, "response_format.json_schema.schema")
        case _:
            raise unsupported("response_format.type", "expected 'text', 'json_object' or 'json_schema'.")


def _schema(schema: dict[str, Any], param: str) -> Grammar:
    wire_safe(schema, param)
    return Grammar(kind="json_schema", schema=schema)
