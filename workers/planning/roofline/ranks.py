"""The operations of each rank of a model, from its configuration alone."""

from __future__ import annotations

from collections.abc import Sequence

from numaserve.workers.models.registry import FAMILIES
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.roofline.shapes import shape_weights
from numaserve.workers.process.model import rank_shape
from numaserve.workers.program.builder import ProgramBuilder
from numaserve.workers.program.cost import OperationCost
from numaserve.workers.program.setup import ProgramLimits, ProgramSetup, Ranks
from numaserve.workers.settings import DEFAULT_SETTINGS, ModelSettings
from numaserve.workers.weights.sharding import make_shard

_ANY = 1 << 40  # counted are steps of any size


def rank_operations(
    config: ModelConfig, shares: Sequence[int], rank: int, settings: ModelSettings = DEFAULT_SETTINGS
) -> list[OperationCost]:
    """What a step costs `rank`, operation by operation in order; `shares` are the ranks' cores. Raises `OperatorError`
    where the checkpoint cannot be had in the formats asked for."""
    limits = ProgramLimits(
        max_step_tokens=32,
        max_logit_rows=32,
        max_slots=1,
        pages_per_slot=1,
        num_pages=1,
    )
    setup = ProgramSetup(rank_shape(config, shares, rank), limits, Ranks(tuple(shares), rank, _ANY), settings)
    builder = ProgramBuilder(setup)
    shard = make_shard(config, shares, rank, settings)
    FAMILIES[config.family].forward(builder, config, shape_weights(config, shard, settings.formats))
    return [cost for operation in builder.fused() for cost in operation.cost(setup)]
