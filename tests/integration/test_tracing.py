"""Spans of requests: from the `traceparent` of a client to a collector."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest
from numaserve.server.config.serve import load_config
from numaserve.server.engine.views.traces import SequenceTrace
from numaserve.server.service import spans as service_spans
from numaserve.server.service.spans import open_spans
from numaserve.workers.interface.errors import OperatorError
from served import Serve, announced_url, completion

from tests.support.otlp_collector import OtlpCollector, attributes

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
DONE = SequenceTrace("id", f"00-{TRACE}-{SPAN}-01", 100.0, 101.0, 103.0, 107.0, 12, 4, 5, "stop")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpCollector]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with OtlpCollector() as collector:
        yield collector


def sent(collector: OtlpCollector, *traces: SequenceTrace) -> Mapping[str, Any]:
    """The spans of these, by name."""
    spans = open_spans(load_config({"model": "demo", "otlp_endpoint": collector.endpoint}), "tiny")
    assert spans is not None
    for trace in traces:
        spans.sequence_ended(trace)
    spans.close()
    return {span.name: span for span in collector.spans}


def test_a_sequence_is_a_span_with_its_parts(collector: OtlpCollector) -> None:
    spans = sent(collector, DONE)
    assert set(spans) == {"llm_request", "queue", "prefill", "decode"}
    whole = spans["llm_request"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, SPAN)
    for part in ("queue", "prefill", "decode"):
        assert (spans[part].trace_id, spans[part].parent_span_id) == (whole.trace_id, whole.span_id)
    lengths = {name: round((span.end_time_unix_nano - span.start_time_unix_nano) / 1e9) for name, span in spans.items()}
    assert lengths == {"llm_request": 7, "queue": 1, "prefill": 2, "decode": 4}
    assert abs(whole.end_time_unix_nano / 1e9 - time.time()) < 3600
    told = attributes(whole)
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (12, 5)
    assert (told["gen_ai.request.model"], told["numaserve.cached_tokens"]) == ("tiny", 4)
    assert collector.paths == {"/v1/traces"}
    assert {resource["service.name"] for resource in collector.resources} == {"numaserve"}


def test_one_that_did_not_come_so_far_has_fewer_parts_and_a_failed_one_says_so(collector: OtlpCollector) -> None:
    failed = replace(DONE, parent="", first_token=None, output_tokens=0, reason="error")
    spans = sent(collector, failed)
    assert set(spans) == {"llm_request", "queue", "prefill"}
    assert spans["llm_request"].parent_span_id == b""
    assert spans["llm_request"].status.code == 2
    assert spans["prefill"].end_time_unix_nano == spans["llm_request"].end_time_unix_nano


def test_a_caller_that_does_not_sample_gets_no_spans(collector: OtlpCollector) -> None:
    assert sent(collector, replace(DONE, parent=f"00-{TRACE}-{SPAN}-00")) == {}


def test_what_cannot_be_is_told_before_a_weight_is_read(
    collector: OtlpCollector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert open_spans(load_config({"model": "demo"}), "m") is None
    with pytest.raises(OperatorError, match="use a URL"):
        open_spans(load_config({"model": "demo", "otlp_endpoint": "collector:4317"}), "m")
    monkeypatch.setattr(service_spans, "_NEEDED", "opentelemetry.not_installed.at_all")
    with pytest.raises(OperatorError, match="run `pip install opentelemetry-sdk"):
        open_spans(load_config({"model": "demo", "otlp_endpoint": collector.endpoint}), "m")
    # An environment that is for all programs of a host is no reason not to serve.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    assert open_spans(load_config({"model": "demo"}), "m") is None
    assert "OpenTelemetry is not installed (to install it, run `pip install opentelemetry-sdk " in caplog.text


def test_a_request_to_a_server_is_in_the_trace_of_its_client(collector: OtlpCollector, serve: Serve) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_SERVICE_NAME": "mine"}
    process = serve("tp=1", environment=environment)
    url = announced_url(process)
    parent = {"traceparent": f"00-{TRACE}-{SPAN}-01", "X-Request-Id": "of-a-client"}
    assert httpx.post(url + "/v1/completions", json=completion(5), headers=parent).status_code == 200
    for other in ({}, {"traceparent": "nonsense"}, [("traceparent", f"00-{TRACE}-{SPAN}-01")] * 2):
        assert httpx.post(url + "/v1/completions", json=completion(2), headers=other).status_code == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    whole = collector.named("llm_request")
    assert [span.trace_id.hex() == TRACE for span in whole] == [True, False, False, False]
    assert len({span.trace_id for span in whole}) == 4
    assert attributes(whole[0])["gen_ai.usage.output_tokens"] == 5
    assert len(collector.named("decode")) == 4
    assert {resource["service.name"] for resource in collector.resources} == {"mine"}
