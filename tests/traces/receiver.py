"""An OTLP/HTTP receiver that decodes what it gets, and can be as bad as receivers are."""

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ENDLESS = 64 * 1024 * 1024
"""Far more than anybody may read of an answer, and little enough for a test that fails."""


class Receiver:
    """`mode`: ok, refuse (500), hang (no answer), endless (an answer that does not end)."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.mode = "ok"
        self.requests = 0
        self.written = 0
        self.released = threading.Event()
        self._lock = threading.Lock()
        self._spans: list[dict[str, Any]] = []

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            for resource in request.resource_spans:
                process = _values(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self._spans += [_span(span, process) for span in scope.spans]

    def spans(self, trace_id: str | None = None) -> list[dict[str, Any]]:
        with self._lock:
            return [span for span in self._spans if trace_id in (None, span["trace_id"])]

    def wait_for(self, trace_id: str, count: int, within_s: float = 20.0) -> list[dict[str, Any]]:
        """The trace's spans, once there are `count` of them or the time is over."""
        until = time.monotonic() + within_s
        while len(self.spans(trace_id)) < count and time.monotonic() < until:
            time.sleep(0.05)
        return self.spans(trace_id)


def _span(span: Any, process: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace_id": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "status": span.status.code,
        "seconds": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        "events": [event.name for event in span.events],
        "attributes": _values(span.attributes),
        "process": process,
    }


def _values(pairs: Any) -> dict[str, Any]:
    def value(any_value: Any) -> Any:
        kind = any_value.WhichOneof("value")
        found = getattr(any_value, kind)
        return [value(one) for one in found.values] if kind == "array_value" else found

    return {pair.key: value(pair.value) for pair in pairs}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    receiver: Receiver

    def do_POST(self) -> None:
        receiver = self.receiver
        body = self.rfile.read(int(self.headers["content-length"]))
        receiver.requests += 1
        if self.path != "/v1/traces" or self.headers["content-type"] != "application/x-protobuf":
            self._answer(404)
        elif receiver.mode == "ok":
            receiver.take(body)
            self._answer(200)
        elif receiver.mode == "refuse":
            self._answer(500)
        elif receiver.mode == "hang":
            receiver.released.wait(60)
            self.close_connection = True
        else:
            self._endless()

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def _endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while self.receiver.written < ENDLESS:
                self.receiver.written += self.wfile.write(b"x" * 65536)
        self.close_connection = True

    def log_message(self, *_arguments: Any) -> None:
        pass


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    handler = type("Handler", (_Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        handler.receiver = receiver = Receiver(server)  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.released.set()
            server.shutdown()
            thread.join(10)
