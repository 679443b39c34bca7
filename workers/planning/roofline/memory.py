"""The memory of a host's nodes that a model takes, and changes that would make it fit."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as change
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.layers.partition import Partition
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.images import ImageMemory, total
from numaserve.workers.planning.narrower import narrower_settings
from numaserve.workers.planning.needs import GIB, RankNeeds, format_bytes, full_pages, rank_needs
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.placement import RankCores
from numaserve.workers.planning.states import least_snapshots
from numaserve.workers.planning.topology import Topology
from numaserve.workers.planning.windows import full_window_pages


@dataclass(frozen=True)
class NodeMemory:
    """Bytes of one node: the needs of all ranks on it, and the bytes that they may use."""

    node: int
    ranks: int
    weights: int
    kv_cache: int
    states: int
    scratch: int
    images: ImageMemory
    usable: int

    @property
    def needed(self) -> int:
        """The bytes needed in total."""
        return self.weights + self.kv_cache + self.states + self.scratch + self.images.besides_weights

    @property
    def fits(self) -> bool:
        """Whether the node has enough memory."""
        return self.needed <= self.usable


def node_memory(
    options: DeploymentOptions,
    model: ModelConfig,
    topology: Topology,
    ranks: Sequence[RankCores],
    *,
    partition: Partition,
    context: int,
) -> list[NodeMemory]:
    """Return the memory of each node when the KV cache holds `max_running_requests` sequences of `context` tokens.

    The KV cache of a bidirectional model has the pages of one step, which is at least as long as `context`.
    Window tables have the pages of these sequences and of as many cached ones.
    Recurrent states have the snapshots of `state_cache_gib`, or the fewest that a server has by default.
    Raises `OperatorError` if the checkpoint does not support the formats asked for.
    """
    needs = rank_needs(replace(options, context_length=context) if model.bidirectional else options, model, partition)
    pages = full_pages(options, model, context)
    windows = full_window_pages(replace(options, context_length=context), model, pages)
    snapshots = _snapshots(options, needs)
    found = []
    for node in topology.nodes:
        own = [rank for rank, each in enumerate(ranks) if each.node == node.id]
        found.append(
            NodeMemory(
                node.id,
                len(own),
                sum(needs.weights[rank] for rank in own),
                sum(needs.kv_bytes(rank, [pages, *windows]) for rank in own),
                sum(needs.state_bytes(rank, snapshots) for rank in own),
                sum(needs.scratch[rank] for rank in own),
                total(needs.images[rank] for rank in own),
                int(node.free_bytes * options.mem_fraction_static),
            )
        )
    return found


def _snapshots(options: DeploymentOptions, needs: RankNeeds) -> int:
    cached = options.state_cache_gib
    return least_snapshots(options.max_running_requests) if cached is None else needs.snapshots_in(cached)


def _smaller_state_caches(options: DeploymentOptions, model: ModelConfig, partition: Partition) -> Iterator[float]:
    """Yield smaller sizes of the cached states, the largest first."""
    needs = rank_needs(options, model, partition)
    each = sum(needs.per_snapshot)
    for count in (*_halves(_snapshots(options, needs)), 0) if each else ():
        yield math.ceil(100 * count * each / GIB) / 100


def remedies(
    options: DeploymentOptions,
    model: ModelConfig,
    topology: Topology,
    ranks: Sequence[RankCores],
    *,
    partition: Partition,
    context: int,
) -> Iterator[str]:
    """Yield changes, each of which would make a model fit that does not."""

    def fits(other: DeploymentOptions, tokens: int = context, divided: Partition = partition) -> bool:
        return all(node.fits for node in node_memory(other, model, topology, ranks, partition=divided, context=tokens))

    def fits_with(settings: ModelSettings) -> bool:
        """Return whether the model fits with other settings; false if it does not support them."""
        try:
            return fits(replace(options, settings=settings), divided=model.partition(partition.shares, settings))
        except OperatorError:
            return False

    narrower = (name for name, settings in narrower_settings(options.settings) if fits_with(settings))
    if name := next(narrower, None):
        yield f"--quantization {name}"
    fewer = [
        count for count in _halves(options.max_running_requests) if fits(replace(options, max_running_requests=count))
    ]
    if fewer:
        yield f"--max-running-requests {fewer[0]}"
    for gib in _smaller_state_caches(options, model, partition):
        if fits(replace(options, state_cache_gib=gib)):
            yield f"--state-cache-gib {gib:g}"
            break
    shorter = [tokens for tokens in _halves(context) if fits(options, tokens)]
    if shorter:
        yield f"a context of {shorter[0]} tokens"
    if options.settings.kv_cache_dtype == "bf16" and fits_with(change(options.settings, kv_cache_dtype="int8")):
        yield "--kv-cache-dtype int8"
    short = [
        node.needed - node.usable
        for node in node_memory(options, model, topology, ranks, partition=partition, context=context)
    ]
    yield f"{format_bytes(max(short))} more memory on the node with the largest shortage"
    idle = {node.id for node in topology.nodes} - {rank.node for rank in ranks}
    if idle and options.backend == "native":
        yield f"--tp {len(topology.nodes)}, which also uses the idle nodes (number of idle nodes: {len(idle)})"


def _halves(value: int) -> Iterator[int]:
    while value > 1:
        value //= 2
        yield value
