"""The mixtures of experts that ``numaserve bench kernels`` measures, and whose rows a plan reads."""

from __future__ import annotations

from dataclasses import dataclass

from numaserve.workers.models.spec import MoeConfig


@dataclass(frozen=True)
class ExpertShape:
    """Sizes of a layer's experts."""

    hidden: int
    routing: MoeConfig


EXPERT_SHAPES = {
    "tiny": ExpertShape(
        64, MoeConfig(num_experts=6, top_k=2, intermediate_size=32, shared_intermediate_size=64, shared_gate=True)
    ),
    "moe-2b": ExpertShape(1024, MoeConfig(num_experts=96, top_k=8, intermediate_size=384)),
    "moe-shared": ExpertShape(
        1024, MoeConfig(num_experts=64, top_k=8, intermediate_size=512, shared_intermediate_size=512)
    ),
}
