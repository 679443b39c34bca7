"""The messages between the front end and the workers, and nothing else.

Every message is a msgspec struct encoded with msgpack, sent as one ZeroMQ frame over ``ipc://``. The first byte of a
frame is `PROTOCOL_VERSION`: a worker left over from another version is told apart before anything is decoded.
Unknown fields and wrong types are refused by msgspec; nothing is ever unpickled.

Vocabulary: a *slot* is a sequence's place in a batch; a *page* holds `PAGE_SIZE` tokens of KV cache; page numbers are
given out by the front end and are the same on every rank.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec
from numaserve.workers.settings import DEFAULT_SETTINGS, Backend, ModelSettings

PROTOCOL_VERSION = 7
PAGE_SIZE = 32
MAX_LOGPROBS = 20


class ProtocolError(ValueError):
    """A frame that is not a message of this protocol version."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The sampling of one sequence. Neutral values turn a stage off.

    The random numbers of a position are a pure function of (`seed`, position): a resumed or retracted request
    samples the same tokens again.
    """

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output tokens
    presence_penalty: float = 0.0  # over output tokens
    frequency_penalty: float = 0.0  # over output tokens
    seed: int = 0
    logit_bias: dict[int, float] = {}
    logprobs: int = -1  # -1: none; 0: of the chosen token; n: and of the n most likely, n <= MAX_LOGPROBS
    min_position: int = 0  # `suppress` is not sampled for positions below this one (min_tokens)
    suppress: list[int] = []  # token ids
    masked: bool = False  # each sample is awaited on the mask board, and is one of the tokens that its mask allows
    token_ids_logprob: list[int] = []  # tokens whose log-probabilities are wanted at each sampled position

    @property
    def has_penalties(self) -> bool:
        """Whether the sampler needs to know which tokens came before."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


class SlotInit(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Starts a sequence in a slot, forgetting whatever the slot held. The plan that brings it has the whole page table:
    pages of a cached prefix, then the first own ones.

    The histories are for the penalties: with `sampling.has_penalties` they are the whole prompt and all output tokens
    so far (a resumed sequence has some), whatever part of them the plans bring as `tokens`; otherwise both are empty.
    A worker counts from them, adds each token that it samples afterwards, and counts no `tokens` of a plan.
    """

    sampling: SamplingParams
    prompt_history: list[int] = []
    output_history: list[int] = []


class SeqPlan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One sequence's part of a step: `len(tokens)` new tokens at positions `start`, `start + 1`, ...

    With `from_previous` the sequence has exactly one new token, the one that this slot sampled last, and `tokens` is
    empty. `pages` are appended to the slot's page table before the step: when the plan is run, not when it is received,
    since a plan may give a slot or a page to another sequence while the plan before it still runs.
    """

    slot: int
    start: int
    tokens: list[int]
    from_previous: bool = False
    pages: list[int] = []
    init: SlotInit | None = None
    sample: bool = False  # whether to sample a token after the last position
    # When echo wants logprobs: the true next token of each position. Empty, or as long as `tokens`, but shorter where
    # the chunk goes on past the last position but one of the prompt.
    prompt_logprobs: list[int] = []
    pool: bool = False  # whether the final norm of the last position is the result, of a model loaded with `pooled`


class StepPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="plan"):
    """The work of one step, for every rank."""

    step_id: int
    seqs: list[SeqPlan]
    deadline_s: float = 0.0  # of each wait for another rank; 0: the `Launch`'s


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Log-probabilities (natural logarithm, of the unmodified distribution) at one position."""

    token: int
    logprob: float
    top_ids: list[int] = []  # most likely first
    top_logprobs: list[float] = []


class SeqResult(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The result of one sequence of a plan. `token` is -1 where the plan wanted no sample.

    With `nan` some row of logits held a NaN, or had no finite maximum, or the embedding is not all numbers. Token,
    log-probabilities and embedding mean nothing then; the worker can still go on from the token, which is one of the
    vocabulary. The same holds with `dropped`: no mask came in time, or one that says so, or one that allows no token.
    """

    token: int = -1
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs] = []
    nan: bool = False
    dropped: bool = False
    token_logprobs: list[float] = []  # of `token_ids_logprob`, in that order; empty where nothing was sampled
    embedding: bytes = b""  # fp32, little-endian, of the hidden size; empty where the plan did not pool


class StepResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="result"):
    """Rank 0's answer to a plan; `seqs` in the plan's order. The other ranks answer with `seqs` empty, so that
    the front end sees their progress and timings too."""

    step_id: int
    rank: int
    seqs: list[SeqResult]
    native_ns: int  # inside the native call
    all_reduce_ns: int  # of which collectives, on thread 0
    worker_ns: int  # plan received to result sent
    mask_wait_ns: int = 0  # of native_ns, waiting for masks, on the thread that waited longest


class WeightsCache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cache that keeps packed weights from one start to the next."""

    folder: str
    limit_bytes: int  # of all files together


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
    mask_deadline_s: float = 1.0  # for all masks of a step together, from the beginning of its sampling
    settings: ModelSettings = DEFAULT_SETTINGS
    weights_cache: WeightsCache | None = None
    backend: Backend = "native"  # the interpreter of operations


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
    weights_from: WeightsOrigin = "checkpoint"
    weights_ns: int = 0  # how long that took
    terms: list[OperationTerms] = []  # of the operations that multiply


class WorkerStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="stats"):
    """Sent from time to time for /metrics."""

    rank: int
    rss_bytes: int
    misplaced_pages: int


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="failure"):
    """Something failed. With `step_id` >= 0 the requests of that step failed and the worker goes on; otherwise the
    worker is about to exit. `message` tells the operator what to do next."""

    rank: int
    step_id: int
    message: str


class ProfileRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="profile_request"):
    """Asks a rank what its operations have cost so far. It is answered between two steps, in the order of arrival.

    With `ceilings` the rank measures beforehand what its node allows. That takes some tenths of a second, in which no
    step can run: every rank has to be asked at the same place between the plans, while nothing runs.
    """

    request_id: int
    ceilings: bool = False


class OperationProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All operations of one name, over the layers. Everything but `weight_bytes` grows from step to step."""

    name: str
    format: str  # of what is multiplied, and so which peak it is measured by
    calls: int
    ns: int  # with the barrier that ends the operation
    wait_ns: int  # of which waiting for other ranks, whether for their imbalance or for their data
    weight_bytes: int  # that they hold
    bytes: int  # of weights and KV cache that had to be read at least; activations are not counted
    flops: int  # multiplies and adds of matrix products and attention


class Ceilings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The most that the cores of one rank can do, measured while all ranks measure."""

    isa: str
    threads: int
    read_bytes_s: float
    flops_s: dict[str, float]  # by the format of what is multiplied; those that the rank uses

    def better(self, other: Ceilings) -> Ceilings:
        """The best of two measurements: a shared machine changes within minutes, and only ever for the worse."""
        flops = {format: max(self.flops_s[format], other.flops_s[format]) for format in self.flops_s}
        return Ceilings(self.isa, self.threads, max(self.read_bytes_s, other.read_bytes_s), flops)


class RankProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="profile"):
    """A rank's answer to a `ProfileRequest`: totals since it was loaded, so that the difference of two answers tells
    of the steps between them. What `native_ns` is more than its operations goes into checking and laying out plans."""

    request_id: int
    rank: int
    steps: int
    tokens: int
    native_ns: int
    operations: list[OperationProfile]
    ceilings: Ceilings | None = None


class Shutdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="shutdown"):
    """Asks a worker to exit with status 0."""


ToWorker = Launch | StepPlan | ProfileRequest | Shutdown
FromWorker = LoadProgress | Ready | StepResult | WorkerStats | RankProfile | Failure

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)

T = TypeVar("T")


def encode(message: ToWorker | FromWorker) -> bytes:
    """The frame of a message."""
    return bytes([PROTOCOL_VERSION]) + _encoder.encode(message)


def decode_to_worker(frame: bytes) -> ToWorker:
    """Decode what a worker receives. Raises `ProtocolError` for any frame that is not such a message."""
    return _decode(_to_worker, frame)


def decode_from_worker(frame: bytes) -> FromWorker:
    """Decode what the front end receives. Raises `ProtocolError` for any frame that is not such a message."""
    return _decode(_from_worker, frame)


def _decode(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T:
    if not frame or frame[0] != PROTOCOL_VERSION:
        raise ProtocolError(f"not a frame of protocol version {PROTOCOL_VERSION}")
    try:
        return decoder.decode(memoryview(frame)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(str(error)) from error
