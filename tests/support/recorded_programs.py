"""Forward passes of one layer, recorded with weights that are only described: one for each part of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from numaserve.workers.program.builder import ProgramBuilder
from numaserve.workers.program.experts import ExpertMatrices, Router
from numaserve.workers.program.ops.experts import Routing
from numaserve.workers.program.setup import ProgramLimits, ProgramSetup, Ranks, RankShape
from numaserve.workers.settings import DEFAULT_SETTINGS, ModelSettings, WeightFormats

HIDDEN, VOCAB, EPS = 64, 96, 1e-5
LIMITS = ProgramLimits(max_step_tokens=32, max_logit_rows=16, max_slots=2, pages_per_slot=4, num_pages=8)

INT8 = ModelSettings(formats=WeightFormats(activations="int8"))


@dataclass(frozen=True, eq=False)
class MatrixShape:
    """A matrix [n, k] that is not there."""

    n: int
    k: int
    format: str = "bf16"
    group: int = 0
    offsets: str = "none"

    @property
    def nbytes(self) -> int:
        return 2 * self.n * self.k


@dataclass(frozen=True, eq=False)
class VectorShape:
    """A vector that is not there."""

    size: int = HIDDEN


@dataclass(frozen=True, eq=False)
class RopeShape:
    """A rope table that is not there."""

    positions: int = 128


def setup(world: int, shape: RankShape, settings: ModelSettings = DEFAULT_SETTINGS) -> ProgramSetup:
    return ProgramSetup(shape, LIMITS, Ranks((2,) * world, 0, 1 << 30 if world > 1 else 0), settings)


def dense(world: int = 1, *, post_norm: bool = False, format: str = "bf16", group: int = 0) -> ProgramBuilder:
    """Heads and a gated MLP."""
    bounds = [VOCAB // world * rank for rank in range(world + 1)]
    b = ProgramBuilder(setup(world, RankShape(2, 1, 32, 1, HIDDEN, bounds), INT8))
    norm = VectorShape() if post_norm else None
    residual = b.embed(MatrixShape(VOCAB, HIDDEN), first_row=0)
    x = b.rms_norm(residual, VectorShape(), EPS)
    q = b.qkv_rope(b.linear(x, MatrixShape(128, HIDDEN, format, group)), layer=0, rope=RopeShape())
    attended = b.linear_partial(b.attention(q, layer=0, scale=1.0), MatrixShape(HIDDEN, 64, format, group))
    b.add_all_reduce(residual, attended, eps=EPS, post_norm=norm, bias=VectorShape())
    x = b.rms_norm(residual, VectorShape(), EPS)
    made = b.gated_mlp(x, MatrixShape(128, HIDDEN, format, group), MatrixShape(HIDDEN, 64, format, group), "silu")
    b.add_all_reduce(residual, made, eps=EPS, post_norm=norm)
    head = MatrixShape(VOCAB // world, HIDDEN, format, group)
    b.sample(b.lm_head(b.rms_norm(residual, VectorShape(), EPS), head))
    return b


def latent(world: int = 1, *, format: str = "bf16") -> ProgramBuilder:
    """Latent attention; with several ranks long sequences are divided, and the latents' rows."""
    shape = RankShape(
        2,
        1,
        96,
        1,
        HIDDEN,
        [VOCAB // world * rank for rank in range(world + 1)],
        value_dim=64,
        head_bounds=[2 * rank for rank in range(world + 1)],
    )
    b = ProgramBuilder(setup(world, shape))
    residual = b.embed(MatrixShape(VOCAB, HIDDEN), first_row=0)
    x = b.rms_norm(residual, VectorShape(), EPS)
    bounds = tuple(160 // world * rank for rank in range(world + 1))
    kv, q = b.split(b.latents(x, MatrixShape(160 // world, HIDDEN), bounds), 96)
    q = b.linear(b.rms_norm(q, VectorShape(), EPS), MatrixShape(128, HIDDEN))
    w_uk, w_uv = MatrixShape(128, 32, format), MatrixShape(64, 64, format)
    out = b.latent_attention(q, kv, w_uk, w_uv, layer=0, rope=RopeShape(), norm=VectorShape(), eps=EPS, scale=1.0)
    b.add_all_reduce(residual, b.linear_partial(out, MatrixShape(HIDDEN, 64)))
    b.sample(b.lm_head(b.rms_norm(residual, VectorShape(), EPS), MatrixShape(VOCAB // world, HIDDEN)))
    return b


def mixture(world: int = 1, *, format: str = "bf16", held: range = range(4), shared: bool = True) -> ProgramBuilder:
    """Experts, and a shared one."""
    bounds = [VOCAB // world * rank for rank in range(world + 1)]
    b = ProgramBuilder(setup(world, RankShape(1, 1, 32, 1, HIDDEN, bounds)))
    residual = b.embed(MatrixShape(VOCAB, HIDDEN), first_row=0)
    x = b.rms_norm(residual, VectorShape(), EPS)
    made = b.experts(
        x,
        Routing(num_experts=4, top_k=2, shared_gate=shared),
        Router(MatrixShape(5, HIDDEN)),
        held=held,
        gate_up=ExpertMatrices(
            tuple(MatrixShape(64, HIDDEN, format) for _ in held), MatrixShape(96, HIDDEN) if shared else None
        ),
        down=ExpertMatrices(
            tuple(MatrixShape(HIDDEN, 32, format) for _ in held), MatrixShape(HIDDEN, 48) if shared else None
        ),
    )
    b.add_all_reduce(residual, made)
    b.sample(b.lm_head(b.rms_norm(residual, VectorShape(), EPS), MatrixShape(VOCAB // world, HIDDEN)))
    return b


def all_programs() -> dict[str, ProgramBuilder]:
    """One of each, on one rank and on two, with activations in bf16 and in int8."""
    found = {}
    for world in (1, 2):
        for format in ("bf16", "int8"):
            for make in (dense, latent, mixture):
                found[f"{make.__name__}, {format}, {world}"] = make(world, format=format)
    return found | {"norms after": dense(post_norm=True), "two groups": dense(format="int4", group=32)}
