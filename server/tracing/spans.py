"""Spans of sequences, sent to a collector over OTLP/HTTP in batches, by a thread of the library's."""

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

_TIMEOUT_S = 3.0  # for a batch, also for the last one at the end of the server
_PARTS = ("queue", "prefill", "decode")
_FAILED = frozenset({"error", "timeout"})


class Spans:
    """Makes a span of each sequence that ends, with one for its queue, its prefill and its decode.

    `endpoint` is a collector's address as in OTEL_EXPORTER_OTLP_ENDPOINT; None: what the environment says. Everything
    else, such as headers, the sampler and the sizes of batches, is the environment's too (OTEL_*).
    """

    def __init__(self, endpoint: str | None, *, model: str, version: str) -> None:
        resource = Resource.create({"service.version": version})
        # What the library says where nobody did.
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "numaserve"}))
        # Not at the interpreter's exit: the server's end is `close`.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        traces = None if endpoint is None else f"{endpoint.rstrip('/')}/v1/traces"
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(traces, timeout=_TIMEOUT_S)))
        self._tracer = self._provider.get_tracer("numaserve", version)
        self._parents = TraceContextTextMapPropagator()
        self._model = model

    def sequence_ended(self, trace: SequenceTrace) -> None:
        """Make its spans. They are sent later and elsewhere; where the collector does not keep up, some are dropped."""
        now, now_ns = trace.ended, time.time_ns()

        def wall(at: float) -> int:
            return now_ns - int((now - at) * 1e9)

        carrier = {"traceparent": trace.parent} if trace.parent else {}
        # An empty context: what the present task has is no part of it.
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
        """Send what there is, in a few seconds at most."""
        self._provider.shutdown()


def _attributes(trace: SequenceTrace, model: str) -> Mapping[str, str | int | list[str]]:
    """Names where there are some: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/"""
    return {
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": trace.prompt_tokens,
        "gen_ai.usage.output_tokens": trace.output_tokens,
        "gen_ai.response.finish_reasons": [trace.reason],
        "numaserve.cached_tokens": trace.cached_tokens,
        "numaserve.request_id": trace.request_id,
    }
