"""The metrics of every server, declared once. Names and labels are a contract with dashboards and alerts.

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
from numaserve.server.speculation.server_drafters import DRAFTERS
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
            "Time from the admission of a request until its first token reaches the HTTP layer.",
            buckets=_REQUEST,
        )
        self.inter_token_latency = series.one(
            Histogram,
            "numaserve_inter_token_latency_seconds",
            "Time between two successive tokens of a sequence.",
            buckets=_GAP,
        )
        self.e2e_latency = series.one(
            Histogram,
            "numaserve_e2e_request_latency_seconds",
            "Time from the admission of a request until it finishes.",
            buckets=_REQUEST,
        )
        self.queue_time = series.one(
            Histogram,
            "numaserve_queue_time_seconds",
            "Time from the admission of a request until it is first scheduled.",
            buckets=_QUEUE,
        )
        self.prefill_time = series.one(
            Histogram,
            "numaserve_prefill_time_seconds",
            "Time from the first scheduling of a request until its first token.",
            buckets=_REQUEST,
        )
        self.decode_time = series.one(
            Histogram,
            "numaserve_decode_time_seconds",
            "Time from the first token of a request until it finishes.",
            buckets=_REQUEST,
        )
        self.prompt_length = series.one(
            Histogram,
            "numaserve_request_prompt_tokens",
            "Tokens per prompt of the scheduled requests.",
            buckets=_LENGTH,
        )
        self.output_length = series.one(
            Histogram,
            "numaserve_request_generation_tokens",
            "Tokens per output of the sequences that ended with at least one token.",
            buckets=_LENGTH,
        )
        self.prompt_tokens = series.one(
            Counter, "numaserve_prompt_tokens_total", "Prompt tokens of the scheduled requests."
        )
        self.generation_tokens = series.one(Counter, "numaserve_generation_tokens_total", "Generated tokens.")
        self.outcomes = series.each(
            Counter,
            "numaserve_request_outcomes_total",
            "Ended sequences (reasons stop to error) and rejected requests (reasons invalid to not_ready).",
            "reason",
            (*FINISH_REASONS, *REFUSALS),
        )
        self.nan_logits = series.one(
            Counter,
            "numaserve_nan_logits_total",
            "Sequences that ended because the model returned logits that are not numbers (NaN). "
            "numaserve_request_outcomes_total also counts these sequences, with reason error.",
        )
        self.over_limit = series.by(
            Counter,
            "numaserve_requests_over_limit_total",
            "Requests rejected because of a limit of their API key, by the key's name in the key file (empty if it "
            "has none).",
            "key",
        )
        self.resumed = series.one(
            Counter,
            "numaserve_requests_resumed_total",
            "Sequences that had started when the workers died and continued on the new workers.",
        )
        self.dropped = series.one(
            Counter,
            "numaserve_dropped_sequences_total",
            "Sequences that ended because their constraint failed, allowed no token or missed --mask-deadline-ms. "
            "numaserve_request_outcomes_total also counts these sequences, with reason error.",
        )
        self.late_masks = series.one(
            Counter,
            "numaserve_late_masks_total",
            "Masks of constrained sequences that were not ready when a step needed them. The sequences are sampled "
            "again in a later step.",
        )
        self.mask = series.one(
            Histogram,
            "numaserve_mask_seconds",
            "Time to apply a constraint between two tokens: accept a token and compute the tokens allowed next.",
            buckets=_STAGE,
        )


class SchedulerFamilies:
    """Counts of the queue and the KV cache."""

    def __init__(self, series: Series) -> None:
        self.requests = series.each(
            Gauge, "numaserve_requests", "Sequences in the engine, by state.", "state", REQUEST_STATES
        )
        self.retractions = series.one(
            Counter, "numaserve_retractions_total", "Sequences returned to the queue because no KV page was free."
        )
        self.draft_tokens = series.each_of(
            Counter,
            "numaserve_draft_tokens_total",
            "Draft tokens that steps verified, by drafter and outcome.",
            {"drafter": DRAFTERS, "outcome": DRAFT_OUTCOMES},
        )
        self.kv_pages = series.each(
            Gauge,
            "numaserve_kv_pages",
            "Pages of the KV cache, by state. Cached pages hold only prefixes for reuse.",
            "state",
            PAGE_STATES,
        )
        self.kv_usage = series.one(
            Gauge,
            "numaserve_kv_usage_ratio",
            "Active pages of the KV cache as a fraction of all pages, 0 to 1. Cached pages do not count: they are "
            "evicted when needed.",
        )
        self.cache_queries = series.one(
            Counter, "numaserve_prefix_cache_queries_tokens_total", "Prompt tokens looked up in the prefix cache."
        )
        self.cache_hits = series.one(
            Counter, "numaserve_prefix_cache_hits_tokens_total", "Prompt tokens found in the prefix cache."
        )


class WorkerFamilies:
    """Times of steps, and the state of the processes that run them."""

    def __init__(self, series: Series) -> None:
        self.info = series.one(
            Info,
            "numaserve",
            "Version, model, instruction set and number of ranks of the server as labels. The value is always 1.",
        )
        self.step = series.each(
            Histogram,
            "numaserve_step_seconds",
            "Time of a step from its scheduling until its result is processed.",
            "phase",
            STEP_KINDS,
            buckets=_STEP,
        )
        self.stage = series.each(
            Histogram,
            "numaserve_step_stage_seconds",
            "Time of the stages of a step. all_reduce and mask_wait are part of native. mask_wait covers only "
            "steps that waited.",
            "stage",
            STAGES,
            buckets=_STAGE,
        )
        self.step_tokens = series.one(
            Histogram,
            "numaserve_step_tokens",
            "Prompt and output tokens per step.",
            buckets=_STEP_TOKENS,
        )
        self.restarts = series.each(
            Counter,
            "numaserve_worker_restarts_total",
            "Restarts of all workers, by the reason why the previous workers died.",
            "reason",
            DEATH_REASONS,
        )
        self.resume_pause = series.one(
            Histogram,
            "numaserve_resume_pause_seconds",
            "Time from the death of the workers until the first result of the new workers.",
            buckets=_REQUEST,
        )
        self.up = series.by(
            Gauge, "numaserve_worker_up", "1 while the worker is ready to compute steps, otherwise 0.", "rank"
        )
        self.misplaced = series.by(
            Gauge,
            "numaserve_worker_misplaced_pages",
            "Memory pages of weights and KV cache on another NUMA node than the worker's node. It should be 0.",
            "rank",
        )
        self.bound = series.by(
            Gauge,
            "numaserve_worker_memory_bound",
            "1 if the kernel binds the worker's memory to its NUMA node, 0 if the kernel refuses, as in many "
            "containers.",
            "rank",
        )
        self.starved = series.by(
            Counter,
            "numaserve_worker_starved_seconds_total",
            "Time that the worker waited for a CPU in steps that took more than a second. Other processes or a CPU "
            "quota took the CPU. It should not grow.",
            "rank",
        )
        self.rss = series.by(Gauge, "numaserve_worker_rss_bytes", "Resident memory of the worker in bytes.", "rank")
        self.states = series.by(
            Gauge,
            "numaserve_worker_state_bytes",
            "Memory of the worker's recurrent states in bytes, of running and of cached sequences. 0 for a model "
            "without recurrent layers.",
            "rank",
        )


class CommonFamilies:
    """Metrics that dashboards, autoscalers and gateways read from any server, under vLLM's names."""

    def __init__(self, series: Series) -> None:
        self.running = series.one(Gauge, "vllm:num_requests_running", "Same as numaserve_requests with state running.")
        self.waiting = series.one(Gauge, "vllm:num_requests_waiting", "Same as numaserve_requests with state waiting.")
        self.kv_usage = series.one(Gauge, "vllm:kv_cache_usage_perc", "Same as numaserve_kv_usage_ratio.")
        self.cache_config = series.one(
            Info,
            "vllm:cache_config",
            "Labels: page size, number of pages and data type of the KV cache, and whether prefix caching is on. The "
            "value is always 1.",
        )
