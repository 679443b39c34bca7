"""Spans of sequences, sent to a collector over OTLP/HTTP in batches, by a thread of the library."""

import time
from collections.abc import Mapping

from numaserve.server.engine.views.traces import SequenceTrace
from opentelemetry import context as otel_context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_TIMEOUT_S = 3.0  # for a batch, including the last one at the end of the server
_PARTS = ("queue", "prefill", "decode")
_FAILED = frozenset({"error", "timeout"})


class Spans:
    """Makes a span of each sequence that ends, with child spans for its queue, its prefill and its decode.

    `endpoint` is a collector's address as in OTEL_EXPORTER_OTLP_ENDPOINT; None: the environment variable. All other
    settings, such as headers, the sampler and the sizes of batches, also come from the environment (OTEL_*).
    """

    def __init__(self, endpoint: str | None, *, model: str, version: str) -> None:
        resource = Resource.create({"service.version": version})
        # The library's default name.
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "numaserve"}))
        # No shutdown at the interpreter's exit: the server calls `close`.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        traces = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces"
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(traces, timeout=_TIMEOUT_S)))
        self._tracer = self._provider.get_tracer("numaserve", version)
        self._parents = TraceContextTextMapPropagator()
        self._model = model

    def sequence_ended(self, trace: SequenceTrace) -> None:
        """Make the spans of a sequence. Another thread sends them later; a slow collector loses some."""
        now, now_ns = trace.ended, time.time_ns()

        def wall(at: float) -> int:
            return now_ns - int((now - at) * 1e9)

        carrier = {"traceparent": trace.parent} if trace.parent else {}
        # An empty context: the spans are independent of the current task's context.
        parent = self._parents.extract(carrier, context=otel_context.Context())
        whole = self._tracer.start_span(
            "llm_request",
            parent,
            kind=SpanKind.SERVER,
            attributes=_attributes(trace, self._model),
            start_time=wall(trace.admitted),
        )
        inner = set_span_in_context(whole, parent)
        times = [trace.admitted, trace.scheduled, trace.first_token, trace.ended]
        for name, begin, end in zip(_PARTS, times, times[1:], strict=False):
            if begin is not None:
                span = self._tracer.start_span(name, inner, start_time=wall(begin))
                span.end(wall(trace.ended if end is None else end))
        if trace.reason in _FAILED:
            whole.set_status(Status(StatusCode.ERROR, trace.reason))
        whole.end(wall(trace.ended))

    def close(self) -> None:
        """Send the remaining spans, within a few seconds."""
        self._provider.shutdown()


def _attributes(trace: SequenceTrace, model: str) -> Mapping[str, str | int | list[str]]:
    """Return the attributes, with standard names where there are any:
    https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/"""
    return {
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": trace.prompt_tokens,
        "gen_ai.usage.output_tokens": trace.output_tokens,
        "gen_ai.response.finish_reasons": [trace.reason],
        "numaserve.cached_tokens": trace.cached_tokens,
        "numaserve.request_id": trace.request_id,
    }
