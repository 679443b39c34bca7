"""The operations of each rank of a model, from its configuration alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from numaserve.workers.models.registry import FAMILIES
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.roofline.counting import CountingBuilder
from numaserve.workers.planning.roofline.operations import Operation
from numaserve.workers.planning.roofline.shapes import shape_weights
from numaserve.workers.process.model import rank_shape
from numaserve.workers.program.builder import ProgramLimits
from numaserve.workers.settings import DEFAULT_SETTINGS, ModelSettings
from numaserve.workers.weights.sharding import make_shard

if TYPE_CHECKING:
    from numaserve.kernels import Team
    from numaserve.shm_comm import Ring

_ANY = 1 << 40  # counted are steps of any size


@dataclass(frozen=True)
class _Team:
    """Threads that there are not."""

    size: int


@dataclass(frozen=True)
class _Ring:
    """A ring that takes every message."""

    slot_bytes: int = _ANY


def rank_operations(
    config: ModelConfig, shares: Sequence[int], rank: int, settings: ModelSettings = DEFAULT_SETTINGS
) -> list[Operation]:
    """What `rank` does in a step, in order; `shares` are the ranks' cores. Raises `OperatorError` where the checkpoint
    cannot be had in the formats asked for."""
    limits = ProgramLimits(
        max_step_tokens=32,
        max_logit_rows=32,
        max_slots=1,
        pages_per_slot=1,
        num_pages=1,
    )
    builder = CountingBuilder(
        shape=rank_shape(config, shares, rank),
        limits=limits,
        team=cast("Team", _Team(shares[rank])),
        ring=cast("Ring", _Ring()) if len(shares) > 1 else None,
        settings=settings,
    )
    shard = make_shard(config, shares, rank, settings)
    FAMILIES[config.family].forward(builder, config, shape_weights(config, shard, settings.formats))
    return builder.count(shares, rank)
