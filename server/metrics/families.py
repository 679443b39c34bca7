"""Every metric, declared once. Names and labels are a contract with dashboards and alerts.

Durations are in seconds, sizes in bytes or tokens.
"""

from numaserve.server.metrics.labels import (
    DEATH_REASONS,
    DRAFT_OUTCOMES,
    FINISH_REASONS,
    PAGE_STATES,
    REFUSALS,
    REQUEST_STATES,
    STAGES,
    STEP_KINDS,
)
from numaserve.server.metrics.series import Series
from numaserve.server.option_types import DRAFTERS
from prometheus_client import Counter, Gauge, Histogram, Info

# Upper bounds of the histograms' buckets, in seconds or tokens. They are the same on every server: only equal bounds
# can be added up over servers.
_HOUR = 3600.0
_UP_TO_TWO_HOURS = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1200.0, 2400.0, _HOUR, 2 * _HOUR)

# A prompt of a hundred thousand tokens may take an hour on a processor, and so may the queue before it.
_REQUEST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, *_UP_TO_TWO_HOURS)
_QUEUE = (0.001, 0.0025, 0.005, *_REQUEST)
_GAP = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0, 60.0),
)
_STEP = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STAGE = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25),
    *(1.0, 5.0),
)
_STEP_TOKENS = tuple(2**power for power in range(14))  # a step has at most 8192
_LENGTH = tuple(2**power for power in range(21))  # to a million tokens


class RequestFamilies:
    """Counts and times of sequences. `n` completions are n sequences."""

    def __init__(self, series: Series) -> None:
        self.time_to_first_token = series.one(
            Histogram,
            "numaserve_time_to_first_token_seconds",
            "Request admitted to first token handed to the HTTP layer.",
            buckets=_REQUEST,
        )
        self.inter_token_latency = series.one(
            Histogram, "numaserve_inter_token_latency_seconds", "Each gap between two tokens.", buckets=_GAP
        )
        self.e2e_latency = series.one(
            Histogram, "numaserve_e2e_request_latency_seconds", "Request admitted to finished.", buckets=_REQUEST
        )
        self.queue_time = series.one(
            Histogram, "numaserve_queue_time_seconds", "Request admitted to first scheduled.", buckets=_QUEUE
        )
        self.prefill_time = series.one(
            Histogram,
            "numaserve_prefill_time_seconds",
            "Request first scheduled to first token.",
            buckets=_REQUEST,
        )
        self.decode_time = series.one(
            Histogram, "numaserve_decode_time_seconds", "First token to finished.", buckets=_REQUEST
        )
        self.prompt_length = series.one(
            Histogram,
            "numaserve_request_prompt_tokens",
            "Lengths of the prompts of scheduled requests.",
            buckets=_LENGTH,
        )
        self.output_length = series.one(
            Histogram,
            "numaserve_request_generation_tokens",
            "Lengths of the outputs of sequences that ended with at least one token.",
            buckets=_LENGTH,
        )
        self.prompt_tokens = series.one(
            Counter, "numaserve_prompt_tokens_total", "Prompt tokens of scheduled requests."
        )
        self.generation_tokens = series.one(Counter, "numaserve_generation_tokens_total", "Tokens generated.")
        self.outcomes = series.each(
            Counter,
            "numaserve_request_outcomes_total",
            "Sequences that ended (stop to error) and requests that were refused (invalid to not_ready).",
            "reason",
            (*FINISH_REASONS, *REFUSALS),
        )
        self.nan_logits = series.one(
            Counter,
            "numaserve_nan_logits_total",
            "Sequences ended because the model's logits were not numbers (NaN); they count as error too.",
        )
        self.over_limit = series.by(
            Counter,
            "numaserve_requests_over_limit_total",
            "Requests refused for a limit of their key, by its name in the key file (empty where it has none).",
            "key",
        )
        self.resumed = series.one(
            Counter,
            "numaserve_requests_resumed_total",
            "Sequences that had begun when the workers died, and went on with others.",
        )
        self.dropped = series.one(
            Counter,
            "numaserve_dropped_sequences_total",
            "Sequences ended because their constraint failed, left nothing to say or was not evaluated within "
            "--mask-deadline-ms; they count as error too.",
        )
        self.late_masks = series.one(
            Counter,
            "numaserve_late_masks_total",
            "Masks of constrained sequences that were not there when a step needed them; they are sampled again.",
        )
        self.mask = series.one(
            Histogram,
            "numaserve_mask_seconds",
            "Work of a constraint between two tokens: one accepted, the mask of the next one made.",
            buckets=_STAGE,
        )


class SchedulerFamilies:
    """Counts of the queue and the KV cache."""

    def __init__(self, series: Series) -> None:
        self.requests = series.each(Gauge, "numaserve_requests", "Sequences in the engine.", "state", REQUEST_STATES)
        self.retractions = series.one(
            Counter, "numaserve_retractions_total", "Sequences sent back to the queue for want of KV pages."
        )
        self.draft_tokens = series.each_of(
            Counter,
            "numaserve_draft_tokens_total",
            "Guessed tokens that steps verified, by what --speculative has guessed them with.",
            {"drafter": DRAFTERS, "outcome": DRAFT_OUTCOMES},
        )
        self.kv_pages = series.each(
            Gauge,
            "numaserve_kv_pages",
            "Pages of the KV cache; cached ones are kept for their prefix only.",
            "state",
            PAGE_STATES,
        )
        self.kv_usage = series.one(
            Gauge,
            "numaserve_kv_usage_ratio",
            "Active pages of the KV cache over all, 0 to 1: cached ones are given up as soon as they are needed.",
        )
        self.cache_queries = series.one(
            Counter, "numaserve_prefix_cache_queries_tokens_total", "Prompt tokens looked up in the prefix cache."
        )
        self.cache_hits = series.one(
            Counter, "numaserve_prefix_cache_hits_tokens_total", "Prompt tokens found in the prefix cache."
        )


class WorkerFamilies:
    """Steps, and the processes that run them."""

    def __init__(self, series: Series) -> None:
        self.info = series.one(Info, "numaserve", "What is being served; always 1.")
        self.step = series.each(
            Histogram,
            "numaserve_step_seconds",
            "One step, scheduled to processed.",
            "phase",
            STEP_KINDS,
            buckets=_STEP,
        )
        self.stage = series.each(
            Histogram,
            "numaserve_step_stage_seconds",
            "Parts of a step; all_reduce and mask_wait are inside native, mask_wait of steps that waited only.",
            "stage",
            STAGES,
            buckets=_STAGE,
        )
        self.step_tokens = series.one(
            Histogram,
            "numaserve_step_tokens",
            "Tokens of one step, of prompts and outputs.",
            buckets=_STEP_TOKENS,
        )
        self.restarts = series.each(
            Counter,
            "numaserve_worker_restarts_total",
            "Restarts of all workers, by what brought the ones before down.",
            "reason",
            DEATH_REASONS,
        )
        self.resume_pause = series.one(
            Histogram,
            "numaserve_resume_pause_seconds",
            "Death of the workers to the first answer of those in their place.",
            buckets=_REQUEST,
        )
        self.up = series.by(Gauge, "numaserve_worker_up", "1 while the worker serves.", "rank")
        self.misplaced = series.by(
            Gauge,
            "numaserve_worker_misplaced_pages",
            "Memory pages of weights and KV on another NUMA node than the worker's; should be 0.",
            "rank",
        )
        self.bound = series.by(
            Gauge,
            "numaserve_worker_memory_bound",
            "1 while the kernel binds the worker's memory to its node; 0 where it refuses to, as in many containers.",
            "rank",
        )
        self.rss = series.by(Gauge, "numaserve_worker_rss_bytes", "Resident memory of the worker.", "rank")


class CommonFamilies:
    """Metrics that dashboards, autoscalers and gateways read of any server, under the names that vLLM gave them."""

    def __init__(self, series: Series) -> None:
        self.running = series.one(Gauge, "vllm:num_requests_running", "As numaserve_requests of state running.")
        self.waiting = series.one(Gauge, "vllm:num_requests_waiting", "As numaserve_requests of state waiting.")
        self.kv_usage = series.one(Gauge, "vllm:kv_cache_usage_perc", "As numaserve_kv_usage_ratio.")
        self.cache_config = series.one(
            Info,
            "vllm:cache_config",
            "Tokens in a page, pages, format of the KV cache, whether prefixes are reused; always 1.",
        )
