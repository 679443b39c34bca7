"""Messages about a worker: its launch, its loading, its statistics, and its end."""

from __future__ import annotations

from typing import Literal

import msgspec
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol.adapters import AdapterLoaded, LoraAdapter
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, Backend, ModelSettings


class WeightsCache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cache that keeps packed weights between starts."""

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
    capacity: Capacity
    ring_fd: int  # -1 with one rank
    ring_nonce: int
    step_deadline_s: float
    mask_fd: int = -1  # the mask board, which rank 0 reads; -1: none, and masked sequences are refused
    mask_nonce: int = 0
    progress_fd: int = -1  # the progress board; -1: none
    progress_nonce: int = 0
    image_fd: int = -1  # the image store, tiles of uint8 [rows, columns, RGB]; -1: none
    image_tiles: int = 0  # tiles of the image store
    mask_grace_s: float = 0.001  # longest wait of a step for its masks; or a fifth of its time so far, if longer
    settings: ModelSettings = DEFAULT_SETTINGS
    weights_cache: WeightsCache | None = None
    blocking: dict[str, int] = {}  # block sizes of products, the same for all ranks; empty: the kernels choose
    backend: Backend = "native"  # the interpreter of operations
    draft: DraftModel | None = None
    drafter: str = ""  # the drafter in the workers; empty: none
    adapters: list[LoraAdapter] = []  # loaded before `Ready`
    disk_folder: str = ""  # of the disk tier's files; empty: none
    # ZeroMQ endpoints of the residual streams from the stage before and to the next one; empty: there is no such stage.
    # HOST:PORT with a key: of this rank, where it listens on `rows_fd` if that is given, and of the next stage's rank.
    rows_from: str = ""
    rows_to: str = ""
    rows_secret: str = ""
    rows_public: str = ""
    rows_fd: int = -1

    @property
    def number(self) -> int:
        """The number of the worker among all stages."""
        return self.settings.stage * self.world_size + self.rank

    @property
    def answers(self) -> bool:
        """Whether the answers of this rank have the results of sequences: on rank 0 of the last stage."""
        return self.rank == 0 and self.settings.stage == self.settings.stages - 1


class LoadProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="progress"):
    """The progress of loading, in bytes of this rank's packed weights."""

    rank: int
    done: int
    total: int


class OperationTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The work of a rank's operations of one name, as terms of a step's shape.

    Bytes are the least bytes of weights and KV cache to read, and flops are multiplies and adds, both as in
    `OperationProfile`. A row is a new token, or with `of_logits` a row of logits. A pair is a new token and a position
    that the token attends to.
    """

    name: str
    of_logits: bool = False
    weight_bytes: int = 0  # read once in a step that has a row
    row_flops: float = 0.0
    expert_bytes: int = 0  # of all experts together; a step reads the experts that its tokens are routed to
    num_experts: int = 0  # a token chooses `top_k` of them
    top_k: int = 0
    position_bytes: int = 0  # of each position that a sequence attends to, read once for all its new tokens
    pair_flops: int = 0
    sequence_bytes: int = 0  # of a sequence's states, read and written
    window: int = 0  # positions that a token attends to, including itself; 0: all
    adapter_bytes: int = 0  # of a LoRA adapter of rank 1; read once in a step that has a row with the adapter
    adapter_flops: float = 0.0  # of a row with an adapter of rank 1


class Ready(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ready"):
    """The report of a rank that has loaded its shard and waits for plans."""

    rank: int
    isa: str
    rss_bytes: int
    weight_bytes: int
    kv_bytes: int
    misplaced_pages: int  # memory pages of weights and KV cache that are on another node than the rank's node
    state_bytes: int = 0  # of recurrent states, of slots and snapshots
    memory_bound: bool = True  # whether the kernel keeps them there; if not, they stay where first touched
    weights_from: WeightsOrigin = "checkpoint"
    weights_ns: int = 0  # nanoseconds that loading the weights took
    terms: list[OperationTerms] = []  # of the operations that multiply
    draft_terms: list[OperationTerms] = []  # of the draft model's operations that multiply
    tower_terms: list[OperationTerms] = []  # of the vision tower's operations that multiply; a row is a tile
    tower_parts: list[float] = []  # the share of a run's multiplies in each of its parts
    adapters: list[AdapterLoaded] = []  # of `Launch.adapters`, in that order; their `request_id` is the number


class WorkerStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="stats"):
    """The statistics of a worker for /metrics, sent periodically."""

    rank: int
    rss_bytes: int
    misplaced_pages: int


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="failure"):
    """The report of a failure. With `step_id` >= 0 the requests of that step failed and the worker continues; otherwise
    the worker is about to exit. `message` states what the operator should do next."""

    rank: int
    step_id: int
    message: str


class Shutdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="shutdown"):
    """Asks a worker to exit with status 0."""
