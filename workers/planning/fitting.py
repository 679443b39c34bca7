"""The KV cache and the context that fit the machine's memory next to the weights, and advice if they do not fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.layers.partition import Partition
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.narrower import narrower_settings
from numaserve.workers.planning.needs import GIB, RankNeeds, format_bytes, pages_of, rank_needs
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.placement import RankCores
from numaserve.workers.planning.topology import Topology

USEFUL_CONTEXT = 1024  # a default context is not reduced below this


class TooLittleMemory(OperatorError):
    """An error about `missing` bytes of memory. `what` states the problem, and each of `remedies` would solve it."""

    def __init__(self, what: str, missing: int, remedies: Sequence[str], *, more: str = "") -> None:
        *others, last = remedies
        advice = f"{', '.join(others)} or {last}" if others else last
        super().__init__(f"{what}; {format_bytes(missing)} more is needed{more}: {advice}")
        self.what = what
        self.missing = missing
        self.remedies = remedies


@dataclass(frozen=True)
class Fitting:
    """A model's memory on the machine."""

    partition: Partition
    needs: RankNeeds
    num_pages: int  # of KV cache
    context_length: int
    notes: tuple[str, ...]  # sentences for the operator


@dataclass(frozen=True)
class _Pool:
    """Memory that some ranks share: a node's, or the rest of a limit. `remark` explains `usable_bytes`, and each of
    `remedies` raises them."""

    place: str
    usable_bytes: int
    ranks: tuple[int, ...]
    remark: str
    remedies: tuple[str, ...]


def fit(options: DeploymentOptions, model: ModelConfig, topology: Topology, ranks: Sequence[RankCores]) -> Fitting:
    """Return the memory of `ranks`.

    Raises `OperatorError` if the model does not fit. The message states the missing bytes and, if there is one, a
    quantization that would fit.
    """
    try:
        return _fit(options, model, topology, ranks)
    except TooLittleMemory as error:
        narrower, more = _quantization(options, model, topology, ranks, error.missing)
        raise TooLittleMemory(error.what, error.missing, [*narrower, *error.remedies], more=more) from None


def _fit(options: DeploymentOptions, model: ModelConfig, topology: Topology, ranks: Sequence[RankCores]) -> Fitting:
    partition = model.partition([len(rank.cpus) for rank in ranks], options.settings)
    needs = rank_needs(options, model, partition)
    pages = _pages_that_fit(options, topology, ranks, needs)
    context, notes = _choose_context(options, model, pages, sum(needs.per_page))
    num_pages = min(pages, options.max_running_requests * pages_of(context) + 1)
    return Fitting(partition, needs, num_pages, context, notes)


def _quantization(
    options: DeploymentOptions, model: ModelConfig, topology: Topology, ranks: Sequence[RankCores], missing: int
) -> tuple[list[str], str]:
    """Return the remedy of narrower weights, found by planning with them, or a text with the bytes that the narrowest
    weights still lack. Return neither if the checkpoint does not support them or already has them."""
    lack = ""
    for name, settings in narrower_settings(options.settings):
        try:
            fitting = _fit(replace(options, settings=settings), model, topology, ranks)
        except TooLittleMemory as error:
            if error.missing < missing:
                lack = f", or {format_bytes(error.missing)} more with --quantization {name}"
        except OperatorError:
            continue
        else:
            return [f"set --quantization {name} (fits with a context of {fitting.context_length} tokens)"], ""
    return [], lack


def _pools(options: DeploymentOptions, topology: Topology, ranks: Sequence[RankCores]) -> list[_Pool]:
    fraction, everyone = options.mem_fraction_static, tuple(range(len(ranks)))
    remark, raised = f" ({fraction:.0%} of the free memory)", "raise --mem-fraction-static"
    has_idle_nodes = len({each.node for each in ranks}) < len(topology.nodes)
    spread = (f"set --tp {len(topology.nodes)} to use all NUMA nodes",) if has_idle_nodes else ()
    pools = [
        _Pool(
            f"on node {node.id}",
            int(node.free_bytes * fraction),
            members,
            remark,
            (f"free memory of node {node.id}", *spread, raised),
        )
        for node in topology.nodes
        if (members := tuple(rank for rank, each in enumerate(ranks) if each.node == node.id))
    ]
    if topology.cgroup_free_bytes is not None:
        usable = int(topology.cgroup_free_bytes * fraction)
        pools.append(_Pool("within the cgroup's memory limit", usable, everyone, remark, ("raise the limit", raised)))
    if options.memory_bytes is not None:
        pools.append(_Pool("within --memory-gib", options.memory_bytes, everyone, "", ("raise --memory-gib",)))
    return pools


def _pages_that_fit(
    options: DeploymentOptions, topology: Topology, ranks: Sequence[RankCores], needs: RankNeeds
) -> int:
    """Return the KV pages that fit the memory of all `ranks` next to weights and scratch, or the number for
    `kv_cache_gib`. Raises `TooLittleMemory` for the pool that lacks most."""
    fitting: list[int] = []
    lacking: list[TooLittleMemory] = []
    for pool in _pools(options, topology, ranks):
        weights = sum(needs.weights[rank] for rank in pool.ranks)
        scratch = sum(needs.scratch[rank] for rank in pool.ranks)
        page = sum(needs.per_page[rank] for rank in pool.ranks)
        left = pool.usable_bytes - weights - scratch
        if left < 2 * page:
            lacking.append(
                TooLittleMemory(
                    f"too little memory {pool.place}: weights ({format_bytes(weights)}) and scratch"
                    f" ({format_bytes(scratch)}) do not fit in {format_bytes(pool.usable_bytes)}{pool.remark}",
                    2 * page - left,
                    (*pool.remedies, "use a smaller model"),
                )
            )
        elif page:
            fitting.append(left // page)
    if lacking:
        raise max(lacking, key=lambda each: each.missing)
    most = min(fitting)
    if options.kv_cache_gib is None:
        return most
    total = sum(needs.per_page)
    wanted = int(options.kv_cache_gib * GIB) // total
    if wanted > most:
        raise OperatorError(
            f"--kv-cache-gib {options.kv_cache_gib:g} does not fit in memory together with the weights: lower it to"
            f" at most {most * total / GIB:.2f}, or raise --mem-fraction-static"
        )
    return wanted


def _choose_context(
    options: DeploymentOptions, model: ModelConfig, pages: int, bytes_per_page: int
) -> tuple[int, tuple[str, ...]]:
    """Return the context length, and notes about it. One sequence of full length and one spare page must fit."""
    wanted = options.context_length or model.max_position
    if wanted > model.max_position:
        raise OperatorError(
            f"--context-length {wanted} exceeds the model's limit of {model.max_position} tokens: lower the option"
        )
    holds = max(pages - 1, 0) * PAGE_SIZE
    if wanted <= holds:
        return wanted, ()
    needed = (pages_of(wanted) + 1) * bytes_per_page
    remedies = ["raise --kv-cache-gib"] if options.kv_cache_gib else ["free some memory", "raise --mem-fraction-static"]
    if options.context_length is not None or holds < min(USEFUL_CONTEXT, wanted):
        shorter = [f"set --context-length to at most {holds}"] if holds >= PAGE_SIZE else []
        what = f"the KV cache holds {holds} tokens, but a sequence of {wanted} tokens needs {format_bytes(needed)}"
        if options.kv_cache_gib:  # narrower weights would not change this
            raise OperatorError(f"{what}: {' or '.join([*remedies, *shorter])}")
        raise TooLittleMemory(what, needed - pages * bytes_per_page, [*remedies, *shorter])
    note = f"the context is {holds} tokens instead of the model's {wanted}, because the KV cache holds no more"
    return holds, (f"{note}: {' or '.join(remedies)}",)
