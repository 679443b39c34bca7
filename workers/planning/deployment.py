"""A model's deployment: the cores and the memory of each rank, decided before any weight is read.

It needs only the model's configuration and the machine's topology, so that an impossible wish is answered at
once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from numaserve.workers.errors import OperatorError
from numaserve.workers.layers.partition import Partition, RankPart
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning import reference
from numaserve.workers.planning.placement import Placement, RankCores, place_ranks
from numaserve.workers.planning.topology import Topology
from numaserve.workers.program.handles import MATRIX_PAD, round_up
from numaserve.workers.protocol import PAGE_SIZE, Launch, WeightsCache
from numaserve.workers.settings import DEFAULT_SETTINGS, Backend, ModelSettings

MIB = 1 << 20
GIB = 1 << 30
RING_SLOTS = 3
LOGIT_ROWS_UNIT = 16
MIN_LOGIT_ROWS = 64
PROCESS_BYTES = 256 * MIB  # interpreter, libraries and message buffers of a worker
USEFUL_CONTEXT = 1024  # a default context is not reduced below this
MEMORY_PAGE = 4096


@dataclass(frozen=True)
class DeploymentOptions:
    """The operator's wishes. None leaves the choice to `make_deployment`."""

    model: str  # the folder or .gguf file that the workers open
    max_running_requests: int
    max_step_tokens: int  # prompt and output tokens in one step
    mem_fraction_static: float
    step_deadline_s: float
    mask_deadline_s: float = 1.0
    tp: int | None = None
    threads_per_worker: int | None = None
    reserve_core: bool = False
    context_length: int | None = None
    kv_cache_gib: float | None = None  # of all ranks together
    settings: ModelSettings = DEFAULT_SETTINGS
    weights_cache: WeightsCache | None = None
    backend: Backend = "native"


@dataclass(frozen=True)
class RankResources:
    """One rank's cores and memory; `scratch_bytes` is an estimate and includes the rank's part of the ring."""

    rank: int
    node: int
    cpus: tuple[int, ...]
    weight_bytes: int
    kv_bytes: int
    scratch_bytes: int


@dataclass(frozen=True)
class Deployment:
    """Everything the supervisor needs to start the workers."""

    launches: list[Launch]  # by rank, without the fields of ring and mask board
    ring_lanes: int  # threads that every rank has
    ring_slot_bytes: int
    ranks: list[RankResources]
    num_pages: int
    context_length: int
    max_step_tokens: int
    max_logit_rows: int  # positions of one step whose logits are computed, or that are pooled
    front_end_cpus: tuple[int, ...]  # kept for the front end; empty without a reserved core
    notes: tuple[str, ...]  # sentences for the operator about the choices made


@dataclass(frozen=True)
class _Pool:
    """Memory that some ranks share: a node's, or what a cgroup limit leaves."""

    name: str
    free_bytes: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RankNeeds:
    """Bytes that each rank needs, by rank: for weights, for scratch, and for a page of KV cache."""

    weights: list[int]
    scratch: list[int]
    per_page: list[int]


def make_deployment(options: DeploymentOptions, model: ModelConfig, topology: Topology) -> Deployment:
    """The deployment of `model` on a machine.

    Raises `OperatorError` for too few cores, too little memory, too long a context, or no experts to divide.
    """
    placement = place(options, topology)
    ranks = placement.ranks
    shares = [len(rank.cpus) for rank in ranks]
    if options.settings.expert_parallel:
        check_experts(model, len(ranks))
    partition = model.partition(shares, options.settings)
    slot_bytes = _ring_slot_bytes(options, model, partition)
    needs = rank_needs(options, model, partition)
    fitting = _pages_that_fit(options, _pools(topology, ranks), needs)
    context, context_notes = _choose_context(options, model, fitting, sum(needs.per_page))
    num_pages = min(fitting, options.max_running_requests * pages_of(context) + 1)
    tokens = _step_tokens(options)
    launches = [
        Launch(
            rank=rank,
            world_size=len(ranks),
            model=options.model,
            cpus=[list(each.cpus) for each in ranks],
            nodes=[each.node for each in ranks],
            weights=shares,
            num_pages=num_pages,
            context_length=context,
            max_running_requests=options.max_running_requests,
            max_step_tokens=tokens,
            max_logit_rows=max_logit_rows(options.max_running_requests),
            ring_fd=-1,
            ring_nonce=0,
            step_deadline_s=options.step_deadline_s,
            mask_deadline_s=options.mask_deadline_s,
            settings=options.settings,
            weights_cache=options.weights_cache,
            backend=options.backend,
        )
        for rank in range(len(ranks))
    ]
    resources = [
        RankResources(
            rank, each.node, each.cpus, needs.weights[rank], needs.per_page[rank] * num_pages, needs.scratch[rank]
        )
        for rank, each in enumerate(ranks)
    ]
    return Deployment(
        launches=launches,
        ring_lanes=min(shares),
        ring_slot_bytes=slot_bytes,
        ranks=resources,
        num_pages=num_pages,
        context_length=context,
        max_step_tokens=tokens,
        max_logit_rows=max_logit_rows(options.max_running_requests),
        front_end_cpus=placement.front_end_cpus,
        notes=(*model.notes, *placement.notes, *context_notes),
    )


def place(options: DeploymentOptions, topology: Topology) -> Placement:
    """The ranks' cores. Raises `OperatorError` for too few cores, and for more than one rank of the reference."""
    if options.backend == "native":
        return place_ranks(topology, options.tp, options.threads_per_worker, options.reserve_core)
    tp = reference.only_rank(options.tp)
    placement = place_ranks(topology, tp, options.threads_per_worker, options.reserve_core)
    return replace(placement, notes=(*placement.notes, reference.NOTE))


def max_logit_rows(max_running_requests: int) -> int:
    """Rows of logits that one step may produce."""
    return round_up(max(max_running_requests, MIN_LOGIT_ROWS), LOGIT_ROWS_UNIT)


def format_bytes(nbytes: int) -> str:
    """Bytes as an operator reads them: MiB below one GiB."""
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes / MIB:.0f} MiB"


def check_experts(model: ModelConfig, ranks: int) -> None:
    """Raises `OperatorError` where `ranks` ranks cannot have experts of their own."""
    if all(each.each is None for each in model.decoder.parameters()):
        raise OperatorError("--expert-parallel is for models with experts, and this one has none: leave it out")
    if ranks < 2:
        raise OperatorError(
            "--expert-parallel gives each rank some of the experts, and there is one rank: set --tp to 2 or more, or"
            " leave it out"
        )


def _step_tokens(options: DeploymentOptions) -> int:
    """Every running request must find room for its next token in a step."""
    return max(options.max_step_tokens, options.max_running_requests)


def _logit_rows(options: DeploymentOptions) -> int:
    """Rows of logits that there has to be room for."""
    return 0 if options.settings.pooled else max_logit_rows(options.max_running_requests)


def _ring_slot_bytes(options: DeploymentOptions, model: ModelConfig, partition: Partition) -> int:
    """The largest message of a step, fp32: the residual stream of all tokens, what one rank makes of a layer for the
    others, or its logits."""
    decoder = model.decoder
    columns = max(model.hidden_size, *(decoder.message_columns(part) for part in partition.ranks))
    vocabulary = max(map(len, partition.ranges(decoder.embedding.axis)))
    sizes = (_step_tokens(options), columns), (_logit_rows(options), vocabulary)
    padded = (round_up(rows, MATRIX_PAD) * round_up(wide, MATRIX_PAD) for rows, wide in sizes)
    return round_up(4 * max(padded), MEMORY_PAGE)


def rank_needs(options: DeploymentOptions, model: ModelConfig, partition: Partition) -> RankNeeds:
    """The memory that each rank needs. Raises `OperatorError` for formats that cannot be had."""
    slot_bytes = _ring_slot_bytes(options, model, partition) if partition.world_size > 1 else 0
    # Besides the ring's slots, queries of all ranks' heads: narrower than the results that a slot has for as many
    # sequences.
    exchanged = RING_SLOTS * slot_bytes + (slot_bytes if model.decoder.shares_queries else 0)
    ranks, dtype = partition.ranks, options.settings.kv_cache_dtype
    expands = options.backend == "reference"
    fixed = PROCESS_BYTES + exchanged + (reference.TORCH_BYTES if expands else 0)
    return RankNeeds(
        weights=[part.weight_bytes() + (reference.expanded_bytes(part) if expands else 0) for part in ranks],
        scratch=[fixed + _activation_bytes(options, model, part) for part in ranks],
        per_page=[reference.page_bytes(model, part, options.backend, dtype) for part in ranks],
    )


def _activation_bytes(options: DeploymentOptions, model: ModelConfig, part: RankPart) -> int:
    """An upper estimate of a step's intermediate results, as if no two of them shared memory."""
    tokens, decoder = _step_tokens(options), model.decoder
    per_token = 4 * (3 * model.hidden_size + decoder.scratch_columns(part))
    # Rank 0 gathers the logits of all ranks.
    columns = model.vocab_size if part.rank == 0 else len(part.along(decoder.embedding.axis))
    return tokens * per_token + 2 * 4 * _logit_rows(options) * columns


def _pools(topology: Topology, ranks: Sequence[RankCores]) -> list[_Pool]:
    pools = [
        _Pool(f"node {node.id}", node.free_bytes, members)
        for node in topology.nodes
        if (members := tuple(rank for rank, each in enumerate(ranks) if each.node == node.id))
    ]
    if topology.cgroup_free_bytes is not None:
        pools.append(_Pool("the cgroup's memory limit", topology.cgroup_free_bytes, tuple(range(len(ranks)))))
    return pools


def _pages_that_fit(options: DeploymentOptions, pools: Sequence[_Pool], needs: RankNeeds) -> int:
    """KV pages that every pool can hold next to weights and scratch, or as many as `kv_cache_gib` asks for."""
    fitting: list[int] = []
    for pool in pools:
        usable = int(pool.free_bytes * options.mem_fraction_static)
        weights = sum(needs.weights[rank] for rank in pool.ranks)
        scratch = sum(needs.scratch[rank] for rank in pool.ranks)
        left = usable - weights - scratch
        page = sum(needs.per_page[rank] for rank in pool.ranks)
        if left < 2 * page:
            raise OperatorError(
                f"too little memory on {pool.name}: weights of {format_bytes(weights)} and scratch of"
                f" {format_bytes(scratch)} do not fit {format_bytes(usable)} ({options.mem_fraction_static:.0%} of what"
                " is free); free some memory, raise --mem-fraction-static, spread over more nodes with --tp, or take"
                " a smaller model"
            )
        if page:
            fitting.append(left // page)
    most = min(fitting)
    if options.kv_cache_gib is None:
        return most
    total = sum(needs.per_page)
    wanted = int(options.kv_cache_gib * GIB) // total
    if wanted > most:
        raise OperatorError(
            f"--kv-cache-gib {options.kv_cache_gib:g} does not fit next to the weights: lower it to at most"
            f" {most * total / GIB:.2f}, or raise --mem-fraction-static"
        )
    return wanted


def _choose_context(
    options: DeploymentOptions, model: ModelConfig, pages: int, bytes_per_page: int
) -> tuple[int, tuple[str, ...]]:
    """The context length, and what to tell about it. One sequence of full length and one spare page must fit."""
    wanted = options.context_length or model.max_position
    if wanted > model.max_position:
        raise OperatorError(
            f"--context-length {wanted} is more than the model's {model.max_position}: lower it to at most that"
        )
    holds = max(pages - 1, 0) * PAGE_SIZE
    if wanted <= holds:
        return wanted, ()
    needed = format_bytes((pages_of(wanted) + 1) * bytes_per_page)
    remedy = "raise --kv-cache-gib" if options.kv_cache_gib else "free some memory or raise --mem-fraction-static"
    if options.context_length is not None or holds < min(USEFUL_CONTEXT, wanted):
        shorter = f", or set --context-length to at most {holds}" if holds >= PAGE_SIZE else ""
        raise OperatorError(
            f"the KV cache holds {holds} tokens, but a sequence of {wanted} needs {needed}: {remedy}{shorter}"
        )
    note = (
        f"the context is {holds} tokens instead of the model's {wanted}, for that is what the KV cache holds: {remedy}"
    )
    return holds, (note,)


def pages_of(tokens: int) -> int:
    """Pages of KV cache that a sequence takes."""
    return -(-tokens // PAGE_SIZE)
