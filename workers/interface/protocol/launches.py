"""Messages about a worker: its launch, its loading, its statistics, and its end."""

from __future__ import annotations

from typing import Literal

import msgspec
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, Backend, ModelSettings


class WeightsCache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cache that keeps packed weights from one start to the next."""

    folder: str
    limit_bytes: int  # of all files together


class DraftModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A smaller model with the same vocabulary, which proposes draft tokens for the served model."""

    model: str  # a folder or a .gguf file
    settings: ModelSettings


WeightsOrigin = Literal["checkpoint", "cache"]


class Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="launch"):
    """The first message to a worker: everything it needs to become ready. Paths are local."""

    rank: int
    world_size: int
    model: str  # a folder or a .gguf file
    cpus: list[list[int]]  # per rank, the processors of its thread team
    nodes: list[int]  # per rank, its NUMA node
    weights: list[int]  # per rank, its share when tensors are split (its number of cores)
    num_pages: int
    context_length: int
    max_running_requests: int
    max_step_tokens: int
    max_logit_rows: int  # rows of logits in one step: samples and prompt log-probabilities
    ring_fd: int  # -1 with one rank
    ring_nonce: int
    step_deadline_s: float
    mask_fd: int = -1  # the mask board, which rank 0 reads; -1: none, and masked sequences are refused
    mask_nonce: int = 0
    mask_grace_s: float = 0.001  # that a step may wait for its masks, or a fifth of what it has taken, if that is more
    settings: ModelSettings = DEFAULT_SETTINGS
    weights_cache: WeightsCache | None = None
    backend: Backend = "native"  # the interpreter of operations
    draft: DraftModel | None = None


class LoadProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="progress"):
    """The progress of loading, in bytes of this rank's packed weights."""

    rank: int
    done: int
    total: int


class OperationTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The work of a rank's operations of one name, as terms of a step's shape. Bytes are those of weights and KV cache
    that have to be read at least, flops multiplies and adds; both are as in `OperationProfile`.

    A row is a new token, or with `of_logits` a row of logits. A pair is a new token and a position that it looks at.
    """

    name: str
    of_logits: bool = False
    weight_bytes: int = 0  # read once in a step that has a row
    row_flops: float = 0.0
    expert_bytes: int = 0  # of all experts together; a step reads those that a token goes to
    num_experts: int = 0  # that a token chooses `top_k` of
    top_k: int = 0
    position_bytes: int = 0  # of each position that a sequence looks at, read once for all its new tokens
    pair_flops: int = 0
    window: int = 0  # positions that a token looks back at, itself included; 0: all


class Ready(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ready"):
    """A rank has loaded its shard and waits for plans."""

    rank: int
    isa: str
    rss_bytes: int
    weight_bytes: int
    kv_bytes: int
    misplaced_pages: int  # memory pages of weights and KV found on another node than the rank's own
    memory_bound: bool = True  # whether the kernel keeps them there; otherwise they lie where they were first touched
    weights_from: WeightsOrigin = "checkpoint"
    weights_ns: int = 0  # nanoseconds that loading them took
    terms: list[OperationTerms] = []  # of the operations that multiply
    draft_terms: list[OperationTerms] = []  # of those of the draft model


class WorkerStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="stats"):
    """Sent from time to time for /metrics."""

    rank: int
    rss_bytes: int
    misplaced_pages: int


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="failure"):
    """Something failed. With `step_id` >= 0 the requests of that step failed and the worker goes on; otherwise the
    worker is about to exit. `message` says what the operator should do next."""

    rank: int
    step_id: int
    message: str


class Shutdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="shutdown"):
    """Asks a worker to exit with status 0."""
