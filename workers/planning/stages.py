"""The ranks and the memory of a model's pipeline stages, on one host or on a host each; a model that is not divided is
one stage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.fitting import Fitting, fit
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.placement import Placement, RankCores, place_ranks
from numaserve.workers.planning.topology import Topology


@dataclass(frozen=True)
class StageMemory:
    """The ranks of a stage, whose numbers begin at `first`, and what fits in their memory."""

    first: int
    ranks: Sequence[RankCores]
    model: ModelConfig
    settings: ModelSettings
    memory: Fitting


def check_stages(options: DeploymentOptions) -> None:
    """Raise `OperatorError` for options that stages cannot have."""
    if options.pp == 1:
        return
    refused = {
        "--backend reference": options.backend == "reference",
        "--draft-model or mtp": bool(options.drafter) or options.draft is not None,
        "--lora": options.settings.max_loras > 0,
        "--task embed": options.settings.pooled,
    }
    for option, is_set in refused.items():
        if is_set:
            raise OperatorError(f"pipeline stages cannot be combined with {option}: use one stage, or leave it out")


def place_on_hosts(options: DeploymentOptions, hosts: Sequence[Topology]) -> Placement:
    """Return the cores of the ranks of each stage, in order, on the stage's host. The front end is on the first host.

    Raises `OperatorError` for too few cores, and for hosts that would have different numbers of ranks.
    """
    placements = [
        place_ranks(host, options.tp, options.threads_per_worker, options.reserve_core and not stage)
        for stage, host in enumerate(hosts)
    ]
    counts = [len(each.ranks) for each in placements]
    if len(set(counts)) > 1:
        raise OperatorError(
            f"the hosts of the stages would have {', '.join(map(str, counts))} ranks, one for each node, and all stages"
            " need the same number: set --tp"
        )
    return Placement(
        [rank for each in placements for rank in each.ranks],
        placements[0].front_end_cpus,
        tuple(f"stage {stage}: {note}" for stage, each in enumerate(placements) for note in each.notes),
    )


def fit_stages(
    options: DeploymentOptions, model: ModelConfig, topology: Topology | Sequence[Topology], ranks: Sequence[RankCores]
) -> list[StageMemory]:
    """Return the memory of each stage, whose `ranks` follow those of the stage before.

    All stages share one host, or each has a host of its own.

    Raises `OperatorError` for a stage that does not fit.
    """
    stages, tp = options.pp, len(ranks) // options.pp
    if stages > 1:
        options = of_a_stage(options)
    found = []
    for stage in range(stages):
        mine = ranks[stage * tp : (stage + 1) * tp]
        part = model.staged(stage, stages)
        host = _shared(topology, mine, ranks) if isinstance(topology, Topology) else topology[stage]
        memory = fit(options, part, host, mine)
        settings = structs.replace(memory.options.settings, stage=stage, stages=stages)
        found.append(StageMemory(stage * tp, mine, part, settings, memory))
    return found


def least_capacity(stages: Sequence[StageMemory]) -> Capacity:
    """Return the limits that all stages can keep: pages and slots have the same numbers in each."""
    first, *others = (each.memory.capacity for each in stages)
    if not others:
        return first
    with_states = [each.memory.capacity for each in stages if each.model.has_states]
    least = {
        name: min(getattr(each, name) for each in (first, *others))
        for name in ("num_pages", "context_length", "max_slots", "max_step_tokens", "max_logit_rows")
    }
    return structs.replace(first, **least, num_snapshots=min((each.num_snapshots for each in with_states), default=0))


def of_a_stage(options: DeploymentOptions) -> DeploymentOptions:
    """Return the options of one of several stages, which share what is given for all ranks together.

    Stages have no window tables: those that a stage needs depend on its layers, and a plan goes to all of them. The
    first stages do not know which draft tokens were accepted, so that states could not go back. Steps are short, since
    stages wait while the first part of a prompt reaches the last of them.
    """
    count = options.pp
    return replace(
        options,
        kv_cache_gib=None if options.kv_cache_gib is None else options.kv_cache_gib / count,
        state_cache_gib=None if options.state_cache_gib is None else options.state_cache_gib / count,
        memory_bytes=None if options.memory_bytes is None else options.memory_bytes // count,
        window_tables=False,
        may_lengthen_steps=False,
        drafts=False,
    )


def _shared(topology: Topology, mine: Sequence[RankCores], ranks: Sequence[RankCores]) -> Topology:
    """Return the topology with the free memory that a stage may take: as much for each rank of a node."""

    def share(of_node: int) -> tuple[int, int]:
        return sum(each.node == of_node for each in mine), sum(each.node == of_node for each in ranks) or 1

    def part(nbytes: int, own: int, every: int) -> int:
        return nbytes * own // every

    free = topology.cgroup_free_bytes
    return replace(
        topology,
        nodes=tuple(replace(node, free_bytes=part(node.free_bytes, *share(node.id))) for node in topology.nodes),
        cgroup_free_bytes=None if free is None else part(free, len(mine), len(ranks)),
    )
