"""What the work costs without a gateway: a bare ASGI application and a Litestar one, answers from memory.

/bare/v1    ASGI, 100 chunks as fast as they go, one send a chunk;   /paced/v1  one every 20 ms, stamped
/lite/v1    Litestar, key looked up by its hash, body decoded with msgspec: one send a chunk, or a whole answer
"""

import asyncio
import hashlib
import os
import time
from typing import Any

import msgspec
import uvicorn
import uvloop
from litestar import Litestar, Request, Response, post
from litestar.response import Stream

KEYS = {hashlib.sha256(os.environ.get("EVENFLOW_BENCH_KEY", "none").encode()).digest(): "floor"}
CHUNK = (
    b'data: {"id":"chatcmpl-floor","object":"chat.completion.chunk","created":1700000000,"model":"floor",'
    b'"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
)
CHUNKS = [CHUNK % b" token" for _ in range(100)]
DONE = b"data: [DONE]\n\n"
WHOLE = msgspec.json.encode(
    {
        "id": "chatcmpl-floor",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "floor",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
    }
)
HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")],
}
PACE_S = 0.020


class Body(msgspec.Struct):
    model: str
    messages: list[dict[str, Any]]
    stream: bool = False
    max_tokens: int | None = None


DECODER = msgspec.json.Decoder(Body)


@post("/lite/v1/chat/completions", status_code=200)
async def lite(request: Request[Any, Any, Any]) -> Response[Any]:
    key = request.headers["authorization"].removeprefix("Bearer ")
    if hashlib.sha256(key.encode()).digest() not in KEYS:
        return Response(b"{}", status_code=401)
    if not DECODER.decode(await request.body()).stream:
        return Response(WHOLE, media_type="application/json")

    async def chunks() -> Any:
        for chunk in CHUNKS:
            yield chunk
        yield DONE

    return Stream(chunks, media_type="text/event-stream")


LITESTAR = Litestar([lite], openapi_config=None, logging_config=None)


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"].startswith("/lite"):
        await LITESTAR(scope, receive, send)
        return
    while (await receive()).get("more_body"):
        pass
    await send(HEAD)
    loop = asyncio.get_running_loop()
    due = loop.time() // PACE_S * PACE_S  # all streams share their steps, as those of an engine that batches do
    for chunk in CHUNKS:
        body = chunk
        if scope["path"].startswith("/paced"):
            due += PACE_S
            await asyncio.sleep(due - loop.time())
            body = CHUNK % (b"@%d@ " % time.monotonic_ns())
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": DONE, "more_body": False})


def main(port: int) -> None:
    config = uvicorn.Config(app, port=port, http="httptools", lifespan="off", log_config=None, access_log=False)
    uvloop.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    import sys

    main(int(sys.argv[1]))
