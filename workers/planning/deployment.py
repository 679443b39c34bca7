"""A model's deployment: the cores and the memory of each rank, decided before any weight is read.

It needs only the model's configuration and the machine's topology, so that an impossible wish is answered at
once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from numaserve.workers.errors import OperatorError
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning import reference
from numaserve.workers.planning.needs import (
    format_bytes,
    max_logit_rows,
    pages_of,
    pages_that_fit,
    rank_needs,
    ring_slot_bytes,
    step_tokens,
)
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.placement import Placement, place_ranks
from numaserve.workers.planning.topology import Topology
from numaserve.workers.protocol import PAGE_SIZE, DraftModel, Launch
from numaserve.workers.settings import ActivationDtype

USEFUL_CONTEXT = 1024  # a default context is not reduced below this


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
    weight_formats: Sequence[str]  # the one with the most bytes first
    multiplied_by: Mapping[ActivationDtype, Sequence[str]]  # formats of weights in groups, by what multiplies them
    front_end_cpus: tuple[int, ...]  # kept for the front end; empty without a reserved core
    notes: tuple[str, ...]  # sentences for the operator about the choices made


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
    slot_bytes = ring_slot_bytes(options, model, partition)
    needs = rank_needs(options, model, partition)
    fitting = pages_that_fit(options, topology, ranks, needs)
    context, context_notes = _choose_context(options, model, fitting, sum(needs.per_page))
    num_pages = min(fitting, options.max_running_requests * pages_of(context) + 1)
    tokens = step_tokens(options)
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
            max_logit_rows=max_logit_rows(options),
            ring_fd=-1,
            ring_nonce=0,
            step_deadline_s=options.step_deadline_s,
            mask_grace_s=options.mask_grace_s,
            settings=options.settings,
            weights_cache=options.weights_cache,
            backend=options.backend,
            draft=None if options.draft is None else DraftModel(options.draft.model, options.draft.settings),
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
        max_logit_rows=max_logit_rows(options),
        weight_formats=partition.weight_formats(),
        multiplied_by=partition.multiplied_by(),
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


def check_experts(model: ModelConfig, ranks: int) -> None:
    """Raises `OperatorError` where `ranks` ranks cannot have experts of their own."""
    if all(each.each is None for each in model.decoder.parameters()):
        raise OperatorError("--expert-parallel is for models with experts, and this one has none: leave it out")
    if ranks < 2:
        raise OperatorError(
            "--expert-parallel gives each rank some of the experts, and there is one rank: set --tp to 2 or more, or"
            " leave it out"
        )


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
