"""Every metric of the server, behind one method per event.

Names and labels are a contract with dashboards and alerts. Durations are in seconds, sizes in bytes or tokens.
The registry belongs to the instance, not to the module, so that a test or a second server in the process starts from
zero.

Latencies (prometheus counts them per sequence; `n` completions are n sequences):

- time to first token: request admitted to first token handed to the HTTP layer;
- inter-token latency: each gap after that;
- queue time: admitted to first scheduled;
- end to end: admitted to finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from numaserve.server.engine.types import FinishReason
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

Phase = Literal["prefill", "decode", "mixed"]
Stage = Literal["schedule", "send", "native", "all_reduce", "receive", "detokenize"]
Refusal = Literal["invalid", "unauthorized", "too_large", "too_long", "queue_full", "not_ready"]

PHASES: tuple[Phase, ...] = ("prefill", "decode", "mixed")
STAGES: tuple[Stage, ...] = ("schedule", "send", "native", "all_reduce", "receive", "detokenize")
FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")
REFUSALS: tuple[Refusal, ...] = ("invalid", "unauthorized", "too_large", "too_long", "queue_full", "not_ready")

_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
_GAP = (
    0.001,
    0.0025,
    0.005,
    0.0075,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.06,
    0.08,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1.0,
    2.5,
    10.0,
)
_QUEUE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_STEP = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STAGE = (
    0.00001,
    0.000025,
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
    5.0,
)


class Metrics:
    """All counters, gauges and histograms of one server. Methods may be called from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self._info = Info("numaserve", "What is being served.", registry=r)
        self._ttft = Histogram(
            "numaserve_time_to_first_token_seconds", "Request admitted to first token.", buckets=_LONG, registry=r
        )
        self._itl = Histogram(
            "numaserve_inter_token_latency_seconds", "Gap between two tokens.", buckets=_GAP, registry=r
        )
        self._e2e = Histogram(
            "numaserve_e2e_request_latency_seconds", "Request admitted to finished.", buckets=_LONG, registry=r
        )
        self._queue = Histogram(
            "numaserve_queue_time_seconds", "Request admitted to first scheduled.", buckets=_QUEUE, registry=r
        )
        self._prompt_tokens = Counter(
            "numaserve_prompt_tokens_total", "Prompt tokens of scheduled requests.", registry=r
        )
        self._generation_tokens = Counter("numaserve_generation_tokens_total", "Tokens generated.", registry=r)
        self._cache_queries = Counter(
            "numaserve_prefix_cache_queries_tokens_total", "Prompt tokens looked up in the prefix cache.", registry=r
        )
        self._cache_hits = Counter(
            "numaserve_prefix_cache_hits_tokens_total", "Prompt tokens found in the prefix cache.", registry=r
        )
        self._kv_pages = Gauge("numaserve_kv_pages", "Pages of the KV cache.", ["state"], registry=r)
        self._requests = Gauge("numaserve_requests", "Sequences in the engine.", ["state"], registry=r)
        self._outcomes = Counter(
            "numaserve_request_outcomes_total", "Sequences ended and requests refused.", ["reason"], registry=r
        )
        self._step = Histogram(
            "numaserve_step_seconds", "One step, scheduled to processed.", ["phase"], buckets=_STEP, registry=r
        )
        self._step_stage = Histogram(
            "numaserve_step_stage_seconds",
            "Parts of a step; all_reduce is inside native.",
            ["stage"],
            buckets=_STAGE,
            registry=r,
        )
        self._worker_up = Gauge("numaserve_worker_up", "1 while the worker serves.", ["rank"], registry=r)
        self._worker_misplaced = Gauge(
            "numaserve_worker_misplaced_pages",
            "Memory pages of weights and KV on another NUMA node than the worker's.",
            ["rank"],
            registry=r,
        )
        self._worker_rss = Gauge("numaserve_worker_rss_bytes", "Resident memory of the worker.", ["rank"], registry=r)
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        # A labelled series exists from its first use on; rate() would miss the first event of each.
        for state in ("free", "cached", "active"):
            self._kv_pages.labels(state)
        for state in ("waiting", "running"):
            self._requests.labels(state)
        for reason in (*FINISH_REASONS, *REFUSALS):
            self._outcomes.labels(reason)
        for phase in PHASES:
            self._step.labels(phase)
        for stage in STAGES:
            self._step_stage.labels(stage)

    def describe(self, *, version: str, model: str, isa: str, tp: int) -> None:
        """Set the labels of `numaserve_info`; again when a restart changes them."""
        self._info.info({"version": version, "model": model, "isa": isa, "tp": str(tp)})

    def request_scheduled(self, *, queue_seconds: float, prompt_tokens: int) -> None:
        """A request leaves the queue for the first time (not when it comes back after retraction)."""
        self._queue.observe(queue_seconds)
        self._prompt_tokens.inc(prompt_tokens)

    def prefix_cache(self, *, queried_tokens: int, hit_tokens: int) -> None:
        """A prompt was looked up in the prefix cache."""
        self._cache_queries.inc(queried_tokens)
        self._cache_hits.inc(hit_tokens)

    def first_token(self, seconds: float) -> None:
        """The first token of a sequence, `seconds` after it was admitted."""
        self._ttft.observe(seconds)
        self._generation_tokens.inc()

    def inter_token(self, seconds: float) -> None:
        """A further token, `seconds` after the one before it."""
        self._itl.observe(seconds)
        self._generation_tokens.inc()

    def request_finished(self, reason: FinishReason, *, e2e_seconds: float) -> None:
        """An admitted sequence reached its one end."""
        self._outcomes.labels(reason).inc()
        self._e2e.observe(e2e_seconds)

    def request_refused(self, reason: Refusal) -> None:
        """A request was turned away before it became a sequence."""
        self._outcomes.labels(reason).inc()

    def requests(self, *, waiting: int, running: int) -> None:
        """How many sequences wait and run now."""
        self._requests.labels("waiting").set(waiting)
        self._requests.labels("running").set(running)

    def pages(self, *, free: int, cached: int, active: int) -> None:
        """KV pages now: unused, kept for their prefix only, held by a running sequence."""
        self._kv_pages.labels("free").set(free)
        self._kv_pages.labels("cached").set(cached)
        self._kv_pages.labels("active").set(active)

    def step(self, phase: Phase, seconds: float, stages: Mapping[Stage, float]) -> None:
        """One step took `seconds`, of which `stages` (those that are known)."""
        self._step.labels(phase).observe(seconds)
        for stage, duration in stages.items():
            self._step_stage.labels(stage).observe(duration)

    def worker(self, rank: int, *, up: bool, rss_bytes: int | None = None, misplaced_pages: int | None = None) -> None:
        """The state of a worker; a figure that is not known keeps its last value."""
        label = str(rank)
        self._worker_up.labels(label).set(1 if up else 0)
        if rss_bytes is not None:
            self._worker_rss.labels(label).set(rss_bytes)
        if misplaced_pages is not None:
            self._worker_misplaced.labels(label).set(misplaced_pages)

    def render(self) -> tuple[bytes, str]:
        """The body and the content type of GET /metrics."""
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4
