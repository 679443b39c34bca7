"""The mixtures of experts that ``numaserve bench kernels`` measures, and whose rows a plan reads."""

from dataclasses import dataclass

from numaserve.workers.program.ops.experts import Routing


@dataclass(frozen=True)
class ExpertShape:
    """Sizes of a layer's experts, and of the shared one, if there is one."""

    hidden: int
    routing: Routing
    intermediate: int
    shared: int = 0


EXPERT_SHAPES = {
    "tiny": ExpertShape(64, Routing(num_experts=6, top_k=2, shared_gate=True), 32, 64),
    "moe-2b": ExpertShape(1024, Routing(num_experts=96, top_k=8), 384),
    "moe-shared": ExpertShape(1024, Routing(num_experts=64, top_k=8), 512, 512),
}
