"""A model's deployment: the cores and the memory of each rank, decided before any weight is read.

It needs only the model's configuration and the machine's topology, so impossible options are refused at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import DraftModel, Launch
from numaserve.workers.interface.settings import ActivationDtype
from numaserve.workers.interface.windows import Window, WindowTable, window_tables
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning import reference
from numaserve.workers.planning.activations import activation_notes
from numaserve.workers.planning.adapters import adapter_notes
from numaserve.workers.planning.images import ImageMemory
from numaserve.workers.planning.needs import ring_slot_bytes, shared_step_tokens, with_whole_images
from numaserve.workers.planning.options import DeploymentOptions, DraftOptions
from numaserve.workers.planning.placement import Placement, place_ranks
from numaserve.workers.planning.stages import StageMemory, check_stages, fit_stages, least_capacity, place_on_hosts
from numaserve.workers.planning.states import check_state_cache
from numaserve.workers.planning.topology import Topology


@dataclass(frozen=True)
class RankResources:
    """One rank's cores and memory; `scratch_bytes` is an estimate and includes the rank's part of the ring."""

    rank: int
    node: int
    cpus: tuple[int, ...]
    weight_bytes: int
    kv_bytes: int
    state_bytes: int  # of recurrent states: of slots and of snapshots
    scratch_bytes: int
    images: ImageMemory

    @property
    def nbytes(self) -> int:
        """The rank's memory in total."""
        caches = self.kv_bytes + self.state_bytes
        return self.weight_bytes + caches + self.scratch_bytes + self.images.besides_weights


@dataclass(frozen=True)
class Deployment:
    """All data that the supervisor needs to start the workers."""

    launches: list[Launch]  # by rank, without the fields of ring and mask board
    ring_lanes: int  # threads that every rank has
    ring_slot_bytes: int
    ranks: list[RankResources]
    capacity: Capacity
    windows: tuple[Window, ...]  # of the window tables; empty: all layers use the same pages
    shared_step_tokens: int  # the most of a step with several sequences
    least_step_tokens: int | None  # of the limits that the scheduler chooses from; None: `shared_step_tokens` alone
    whole_prompts: bool  # a bidirectional model: each prompt is in one step, which may exceed `shared_step_tokens`
    weight_formats: Sequence[str]  # the one with the most bytes first
    reuses_prefixes: bool  # whether a sequence can continue from cached pages of another one
    multiplied_by: Mapping[ActivationDtype, Sequence[str]]  # formats of weights in groups, by activations
    front_end_cpus: tuple[int, ...]  # kept for the front end; empty without a reserved core
    notes: tuple[str, ...]  # sentences for the operator about the choices made

    @property
    def window_tables(self) -> tuple[WindowTable, ...]:
        """The window tables."""
        return window_tables(self.windows, self.capacity)

    @property
    def has_states(self) -> bool:
        """Whether ranks keep recurrent states."""
        return any(rank.state_bytes for rank in self.ranks)

    @property
    def reads_images(self) -> bool:
        """Whether the model reads images."""
        return self.capacity.feature_tiles > 0


def make_deployment(
    options: DeploymentOptions, model: ModelConfig, topology: Topology, hosts: Sequence[Topology] = ()
) -> Deployment:
    """The deployment of `model` on a machine, or on the `hosts` of its stages.

    Raises `OperatorError` for too few cores, too little memory, too long a context, no experts to divide, or a
    draft model with recurrent layers.
    """
    check_stages(options)
    options = with_whole_images(options, model)
    shortest_step = options.max_step_tokens
    placement = place_on_hosts(options, hosts) if hosts else place(options, topology)
    model.check_served()
    if options.settings.expert_parallel:
        check_experts(model, len(placement.ranks) // options.pp)
    options = replace(options, draft=draft_options(options, model, [len(each.cpus) for each in placement.ranks]))
    check_state_cache(options, model)
    stages = fit_stages(options, model, hosts or topology, placement.ranks)
    first, capacity = stages[0], least_capacity(stages)
    options = min((stage.memory.options for stage in stages), key=lambda each: each.max_step_tokens)
    shortest = shared_step_tokens(replace(options, max_step_tokens=shortest_step))
    partitions = [stage.memory.partition for stage in stages]
    return Deployment(
        launches=[launch for stage in stages for launch in _launches(stage, options, capacity)],
        ring_lanes=min(len(rank.cpus) for rank in placement.ranks),
        ring_slot_bytes=max(ring_slot_bytes(options, each.model, each.memory.partition) for each in stages),
        ranks=[rank for stage in stages for rank in _resources(stage, capacity)],
        capacity=capacity,
        windows=first.memory.windows,
        shared_step_tokens=shared_step_tokens(options),
        least_step_tokens=shortest if shortest < shared_step_tokens(options) else None,
        whole_prompts=model.bidirectional,
        weight_formats=[*dict.fromkeys(format for each in partitions for format in each.weight_formats())],
        reuses_prefixes=not model.bidirectional and (not model.has_states or capacity.num_snapshots > 0),
        multiplied_by=first.memory.partition.multiplied_by(),
        front_end_cpus=placement.front_end_cpus,
        notes=(
            *(*model.notes, *placement.notes, *first.memory.notes),
            *(*activation_notes(first.memory.partition), *adapter_notes(first.memory.partition)),
        ),
    )


def _launches(stage: StageMemory, options: DeploymentOptions, capacity: Capacity) -> list[Launch]:
    ranks = stage.ranks
    return [
        Launch(
            rank=rank,
            world_size=len(ranks),
            model=options.model,
            cpus=[list(each.cpus) for each in ranks],
            nodes=[each.node for each in ranks],
            weights=[len(each.cpus) for each in ranks],
            capacity=capacity,
            ring_fd=-1,
            ring_nonce=0,
            step_deadline_s=options.step_deadline_s,
            settings=stage.settings,
            weights_cache=options.weights_cache,
            blocking=dict(options.blocking),
            backend=options.backend,
            draft=None if options.draft is None else DraftModel(options.draft.model, options.draft.settings),
            drafter=options.drafter,
        )
        for rank in range(len(ranks))
    ]


def _resources(stage: StageMemory, capacity: Capacity) -> list[RankResources]:
    needs = stage.memory.needs
    return [
        RankResources(
            stage.first + rank,
            each.node,
            each.cpus,
            weight_bytes=needs.weights[rank],
            kv_bytes=needs.kv_bytes(rank, capacity.table_pages),
            state_bytes=needs.state_bytes(rank, capacity.num_snapshots),
            scratch_bytes=needs.scratch[rank],
            images=needs.images[rank],
        )
        for rank, each in enumerate(stage.ranks)
    ]


def place(options: DeploymentOptions, topology: Topology) -> Placement:
    """The ranks' cores. Raises `OperatorError` for too few cores, and for more than one rank of the reference."""
    if options.backend == "native":
        tp = options.tp
        if options.pp > 1:
            tp = options.pp * (tp or max(1, len(topology.nodes) // options.pp))
        return place_ranks(topology, tp, options.threads_per_worker, options.reserve_core)
    tp = reference.only_rank(options.tp)
    placement = place_ranks(topology, tp, options.threads_per_worker, options.reserve_core)
    return replace(placement, notes=(*placement.notes, reference.NOTE))


def draft_options(options: DeploymentOptions, model: ModelConfig, shares: Sequence[int]) -> DraftOptions | None:
    """Return the options of the draft model as it drafts for `model`. Raises `OperatorError` for one that cannot.

    A draft model reads its own draft tokens, and goes back to any position when they are rejected.
    """
    draft = options.draft
    if draft is None:
        return None
    if draft.config.bidirectional:
        raise OperatorError(
            "--draft-model needs a model that generates text, and this draft model is an encoder: its attention is"
            " bidirectional. Choose another one"
        )
    if draft.config.has_states:
        raise OperatorError(
            "--draft-model needs a model without recurrent layers, because it goes back when draft tokens are rejected,"
            " and this draft model has some: choose another one"
        )
    draft = replace(draft, config=draft.config.drafting_for(model))
    draft.config.decoder.check_ranks(draft.config.partition(shares, draft.settings))
    return draft


def check_experts(model: ModelConfig, ranks: int) -> None:
    """Raises `OperatorError` where `ranks` ranks cannot have experts of their own."""
    if all(each.each is None for each in model.decoder.parameters()):
        raise OperatorError(
            "--expert-parallel needs a model with experts, and this model has none: leave the option out"
        )
    if ranks < 2:
        raise OperatorError(
            "--expert-parallel needs at least two ranks, and there is one: set --tp to 2 or more, or leave"
            " --expert-parallel out"
        )
