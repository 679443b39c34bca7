"""A collector of OpenTelemetry spans: takes what is sent over OTLP/HTTP, and keeps it."""

import gzip
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class OtlpCollector:
    """Listens on 127.0.0.1 while it is entered; `endpoint` is for the environment or the option."""

    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def __enter__(self) -> "OtlpCollector":
        self._server = HTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def _take(self, path: str, body: bytes) -> None:
        self.paths.add(path)
        request = ExportTraceServiceRequest.FromString(body)
        for each in request.resource_spans:
            self.resources.append({pair.key: pair.value.string_value for pair in each.resource.attributes})
            self.spans += [span for scope in each.scope_spans for span in scope.spans]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                zipped = self.headers.get("Content-Encoding") == "gzip"
                collector._take(self.path, gzip.decompress(body) if zipped else body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def attributes(span: Any) -> dict[str, Any]:
    """Those of a span, by name."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
