"""`POST /v1/completions`: a prompt as text or as token ids."""

from typing import Any

from gateway.api import refused
from gateway.api.ask import Ask
from gateway.api.bodies import TextBody, text_decoder
from gateway.api.fields import INT32_MAX, TOP_LOGPROBS, between, common
from gateway.api.parse import body_of, invalid, missing, type_name, unsupported, wrong_type
from shared.settings import LimitSettings
from shared.wire import InputKind


def decode_completion(body: bytes, limits: LimitSettings) -> Ask:
    """Validate a completion request. Raises InvalidRequestError, and nothing else, for anything `body` can hold."""
    text = body_of(body, text_decoder, limits.json_depth)
    refused.refuse(text, refused.TEXT)
    shared = common(text, limits)
    if text.best_of is not None and text.best_of != shared["n"]:
        raise unsupported("best_of", "only the value of 'n' is possible.")
    if text.logprobs is not None:
        between("logprobs", text.logprobs, 0, TOP_LOGPROBS)
    kind, prompt = _prompt(text)
    return Ask(kind=kind, input=prompt, logprobs=text.logprobs, **shared)


def _prompt(body: TextBody) -> tuple[InputKind, Any]:
    """A string, token ids, or a list that holds one of either; a batch of prompts is refused."""
    prompt: Any = body.prompt
    if prompt is None:
        raise missing("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise unsupported("prompt", "only one prompt in a request is possible.")
        prompt = prompt[0]
    if not prompt:
        raise invalid("prompt", "expected at least one character or token id.")
    if isinstance(prompt, str):
        return "text", prompt
    # A body of token ids can hold a million: three passes in C, and a slow one only to name the first that is wrong.
    if set(map(type, prompt)) != {int} or min(prompt) < 0 or max(prompt) > INT32_MAX:
        for index, token in enumerate(prompt):
            if not isinstance(token, int):
                raise wrong_type(f"prompt[{index}]", "an integer", type_name(token))
            between(f"prompt[{index}]", token, 0, INT32_MAX)
    return "ids", prompt
