"""The gateway seen from outside: is it ready, and does it answer?"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from shared.errors import StartError
from shared.settings import Settings

_POLL_S = 0.05
_QUESTION = "In one sentence: what is a river?"
_MAX_TOKENS = 48


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One answer in numbers. Tokens are the server's own count; times are seconds, as the client saw them."""

    prompt_tokens: int
    completion_tokens: int
    first_s: float
    total_s: float

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first over the time after the first; `None` for a single token."""
        rest_s = self.total_s - self.first_s
        return (self.completion_tokens - 1) / rest_s if self.completion_tokens > 1 and rest_s > 0 else None


class _Worker(msgspec.Struct):
    name: str = "worker"
    state: str = ""
    reason: str = ""
    progress: float = 0.0


class _NotReady(msgspec.Struct):
    """The body of a `/ready` that is not 200."""

    missing: list[str] = []
    workers: list[_Worker] = []


def base_url(settings: Settings) -> str:
    """Return where a client on this machine finds the tenants' door."""
    scheme = "https" if settings.tls.certificate else "http"
    return f"{scheme}://{_address(settings.gateway.host)}:{settings.gateway.port}"


def admin_url(settings: Settings) -> str:
    """Return where an operator on this machine finds theirs."""
    return f"http://{_address(settings.admin.host)}:{settings.admin.port}"


def _address(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def client(settings: Settings, authority: str = "") -> httpx.AsyncClient:
    """Return a client for our own door: no proxy of the environment, and only our own certificate is believed.

    With the `authority` (PEM file) that vouches for it, it is checked as any client would; else it is pinned.
    """
    trust: ssl.SSLContext | bool = True
    if authority:
        trust = ssl.create_default_context(cafile=authority)
    elif settings.tls.certificate:
        trust = ssl.create_default_context(cafile=str(Path(settings.tls.certificate)))
        trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # what issued it need not be in the file
        trust.check_hostname = False  # the name in it is the public one; the certificate itself is pinned
    return httpx.AsyncClient(base_url=base_url(settings), verify=trust, trust_env=False, timeout=httpx.Timeout(60.0))


async def wait_until_ready(
    http: httpx.AsyncClient, path: str, tell: Callable[[str, float], None], *, poll_s: float = _POLL_S
) -> float:
    """Poll `path` until it says 200, telling `(phase, seconds waited)` at every poll; return the seconds it took.

    There is no deadline: a model may take minutes to load, and the supervisor reports children that die.
    """
    began = time.monotonic()
    while True:
        try:
            response = await http.get(path)
        except httpx.TransportError:
            phase = "the gateway is starting"
        else:
            if response.status_code == httpx.codes.OK:
                return time.monotonic() - began
            phase = _phase(response)
        tell(phase, time.monotonic() - began)
        await asyncio.sleep(poll_s)


async def ask(http: httpx.AsyncClient, key: str, model: str, show: Callable[[str], None]) -> Measured:
    """Stream one chat answer, showing its text as it comes.

    Raises:
        StartError: the gateway refused it, or it did not end as a stream should (`[DONE]`, with usage).
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": _QUESTION}],
        "max_tokens": _MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.monotonic()
    first_s: float | None = None
    usage: dict[str, Any] | None = None
    try:
        async with http.stream(
            "POST", "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
        ) as response:
            if response.status_code != httpx.codes.OK:
                raise StartError(f"the first answer was refused: {response.status_code} {_why(await response.aread())}")
            async for event in _events(response):
                for choice in event.get("choices", ()):
                    text = choice.get("delta", {}).get("content")
                    if text:
                        first_s = first_s or time.monotonic() - began
                        show(text)
                usage = event.get("usage") or usage
    except httpx.HTTPError as error:
        raise StartError(f"the first answer broke off: {str(error) or type(error).__name__}") from error
    total_s = time.monotonic() - began
    if usage is None:
        raise StartError("the first answer ended without its usage")
    return Measured(
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        first_s=first_s or total_s,
        total_s=total_s,
    )


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON of every `data:` line up to `[DONE]`.

    Raises:
        StartError: the stream carries an error, or ends without `[DONE]`.
    """
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue  # blank separators and keep-alive comments
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return
        event: dict[str, Any] = msgspec.json.decode(data)
        if "error" in event:
            raise StartError(f"the first answer failed: {event['error'].get('message', data)}")
        yield event
    raise StartError("the first answer ended before its [DONE]")


def _phase(response: httpx.Response) -> str:
    """Put a not-ready answer into words: `missing` names what lacks, `workers` how far each is."""
    try:
        body = msgspec.json.decode(response.content, type=_NotReady)
    except msgspec.MsgspecError:
        return f"the gateway answers {response.status_code}"
    missing = f"waiting for: {', '.join(body.missing)}" if body.missing else "not ready"
    return "; ".join([missing, *map(_worker, body.workers)])


def _worker(worker: "_Worker") -> str:
    share = f" {worker.progress * 100:.0f} %" if worker.state == "loading" else ""
    reason = f" ({worker.reason})" if worker.reason else ""
    return f"{worker.name} {worker.state}{share}{reason}"


def _why(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
