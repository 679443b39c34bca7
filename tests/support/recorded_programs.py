"""Forward passes of one layer, one for each part of the vocabulary, recorded with weights that are only described or
with what else a test makes."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, ActivationDtype, ModelSettings
from numaserve.workers.interface.windows import Window
from numaserve.workers.program.caches import CacheIndex, CacheKind, DeltaHeads, Heads, StateKind
from numaserve.workers.program.handles import Adapters, round_up
from numaserve.workers.program.ops.experts import ExpertActivation, Routing
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.recording.experts import ExpertMatrices, Router
from numaserve.workers.program.setup import ProgramSetup, Ranks, RankShape

HIDDEN, VOCAB, EPS = 64, 96, 1e-5
SLIDING = Window(40)
LIMITS = structs.replace(
    Capacity.of_program(64, 64, max_slots=4, pages_per_slot=16, num_pages=40), num_snapshots=3, max_drafts=4
)


@dataclass(frozen=True, eq=False)
class MatrixShape:
    """A matrix [n, k] that is not there."""

    n: int
    k: int
    format: str = "bf16"
    group: int = 0
    offsets: str = "none"
    activations: ActivationDtype = "int8"  # of groups
    adapters: Adapters | None = None

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


class Shapes:
    """Weights of a rank: these are only described. `whole`: the matrix is the same on every rank."""

    def matrix(self, n: int, k: int, format: str = "bf16", group: int = 0, *, whole: bool = False) -> Any:
        return MatrixShape(n, k, format, group)

    def vector(self, size: int = HIDDEN) -> Any:
        return VectorShape(size)

    def decays(self, size: int) -> Any:
        """Negative numbers."""
        return VectorShape(size)

    def rope(self) -> Any:
        return RopeShape()


@dataclass(frozen=True)
class Part:
    """A rank of some, and its weights."""

    world: int = 1
    rank: int = 0
    weights: Shapes = field(default_factory=Shapes)
    settings: ModelSettings = DEFAULT_SETTINGS

    @property
    def vocab(self) -> list[int]:
        """Boundaries of the ranks' parts of the vocabulary."""
        return self.bounds(VOCAB)

    def bounds(self, count: int) -> list[int]:
        """Boundaries of equal parts of so many."""
        return [count // self.world * rank for rank in range(self.world + 1)]

    def builder(self, shape: RankShape, **limits: Any) -> ProgramBuilder:
        ranks = Ranks((2,) * self.world, self.rank, 1 << 30 if self.world > 1 else 0)
        return ProgramBuilder(ProgramSetup(shape, structs.replace(LIMITS, **limits), ranks, self.settings))

    def embedding(self) -> dict[str, Any]:
        """Arguments of the vocabulary's method."""
        table = self.weights.matrix(VOCAB // self.world, HIDDEN)
        return {"table": table, "first_row": self.vocab[self.rank]}


ALONE = Part()


def dense(
    part: Part = ALONE,
    *,
    post_norm: bool = False,
    pre_norm: bool = True,
    divided_norm: bool = False,
    format: str = "bf16",
    group: int = 0,
) -> ProgramBuilder:
    """Heads and a gated MLP."""
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab, (CacheKind(Heads(2, 1, 32)),)))
    residual = b.embed(**part.embedding())
    x = b.rms_norm(residual, w.vector(), EPS) if pre_norm else b.rounded(residual)
    qkv = b.linear(x, w.matrix(128, HIDDEN, format, group))
    if divided_norm:
        columns = 64 * part.world, 32 * part.world
        b.divided_norm(qkv, [w.vector(64), w.vector(32)], counted=(64, 32), columns=columns, eps=EPS)
    q = b.qkv_rope(qkv, cache=CacheIndex(0, 0), rope=w.rope())
    attended = b.linear_partial(b.attention(q, cache=CacheIndex(0, 0), scale=0.2), w.matrix(HIDDEN, 64, format, group))
    b.add_all_reduce(residual, attended, eps=EPS, post_norm=w.vector() if post_norm else None, bias=w.vector())
    x = b.rms_norm(residual, w.vector(), EPS) if pre_norm else b.rounded(residual)
    made = b.gated_mlp(x, w.matrix(128, HIDDEN, format, group), w.matrix(HIDDEN, 64, format, group), "silu")
    b.add_all_reduce(residual, made, eps=EPS, post_norm=w.vector() if post_norm else None)
    head = w.matrix(VOCAB // part.world, HIDDEN, format, group)
    b.sample(b.lm_head(b.rms_norm(residual, w.vector(), EPS), head))
    return b


def latent(part: Part = ALONE, *, format: str = "bf16") -> ProgramBuilder:
    """Latent attention; with several ranks long sequences are divided, and the latents' rows."""
    world = part.world
    heads = [2 * rank for rank in range(world + 1)]
    shape = RankShape(HIDDEN, part.vocab, (CacheKind(Heads(2, 1, 96, 64, is_latent=True, bounds=tuple(heads))),))
    w, b = part.weights, part.builder(shape)
    residual = b.embed(**part.embedding())
    x = b.rms_norm(residual, w.vector(), EPS)
    kv, q = b.split(b.latents(x, w.matrix(160 // world, HIDDEN), tuple(part.bounds(160))), 96)
    q = b.linear(b.rms_norm(q, w.vector(), EPS), w.matrix(128, HIDDEN))
    w_uk, w_uv, rope = w.matrix(128, 32, format), w.matrix(64, 64, format), w.rope()
    out = b.latent_attention(q, kv, w_uk, w_uv, cache=CacheIndex(0, 0), rope=rope, norm=w.vector(), eps=EPS, scale=0.2)
    b.add_all_reduce(residual, b.linear_partial(out, w.matrix(HIDDEN, 64)))
    b.sample(b.lm_head(b.rms_norm(residual, w.vector(), EPS), w.matrix(VOCAB // world, HIDDEN)))
    return b


def mixture(
    part: Part = ALONE,
    *,
    format: str = "bf16",
    group: int = 0,
    held: range = range(4),
    shared: bool = True,
    weighs_input: bool = False,
    activation: ExpertActivation = "silu",
    divided_router: bool = False,
) -> ProgramBuilder:
    """Experts, and a shared one; or experts alone, and a router whose rows the ranks divide."""
    halves = 1 if activation == "relu2" else 2
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab, (CacheKind(Heads(1, 1, 32)),)))
    residual = b.embed(**part.embedding())
    x = b.rms_norm(residual, w.vector(), EPS)
    shapes = (32 * halves, HIDDEN), (HIDDEN, 32)
    gate_up, down = (tuple(w.matrix(n, k, format, group) for _ in held) for n, k in shapes)
    router, experts = Router(w.matrix(4 + shared, HIDDEN, whole=True)), 4
    if divided_router:
        shared, experts = False, 32 * part.world
        router = Router(w.matrix(32, HIDDEN), bounds=tuple(range(0, experts + 1, 32)))
    made = b.experts(
        x,
        Routing(num_experts=experts, top_k=2, shared_gate=shared, weighs_input=weighs_input),
        router,
        held=held,
        gate_up=ExpertMatrices(gate_up, w.matrix(64 * halves, HIDDEN) if shared else None),
        down=ExpertMatrices(down, w.matrix(HIDDEN, 48 if halves == 2 else 64) if shared else None),
        activation=activation,
    )
    b.add_all_reduce(residual, made)
    b.sample(b.lm_head(b.rms_norm(residual, w.vector(), EPS), w.matrix(VOCAB // part.world, HIDDEN)))
    return b


def pooled(part: Part = ALONE) -> ProgramBuilder:
    """An MLP, and a pooled row in place of logits."""
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab, (CacheKind(Heads(1, 1, 32)),)))
    residual = b.embed(**part.embedding())
    x = b.rms_norm(residual, w.vector(), EPS)
    b.add_all_reduce(residual, b.gated_mlp(x, w.matrix(128, HIDDEN), w.matrix(HIDDEN, 64), "silu"))
    b.answer(b.pool(residual, "last", w.vector(), EPS))
    return b


def encoder(part: Part = ALONE) -> ProgramBuilder:
    """Embeddings of positions and types, bidirectional attention, an MLP without a gate, and the mean of all rows."""
    kind = CacheKind(Heads(2, 2, 32), Window(40, bidirectional=True))
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab, (kind,)))
    positions = w.matrix(LIMITS.pages_per_slot * PAGE_SIZE // part.world, HIDDEN)
    tables = [("position", positions, positions.n * part.rank), ("type", w.matrix(2, HIDDEN), 2 * part.rank)]
    residual = b.embed(**part.embedding(), more=tables)
    b.normalize(residual, w.vector(), w.vector(), EPS)
    qkv = b.linear(b.rounded(residual), w.matrix(192, HIDDEN), w.vector(192))
    q = b.qkv_rope(qkv, cache=CacheIndex(0, 0), rope=w.rope())
    attended = b.linear_partial(b.attention(q, cache=CacheIndex(0, 0), scale=0.2), w.matrix(HIDDEN, 64))
    b.add_all_reduce(residual, attended, bias=w.vector())
    x = b.layer_norm(residual, w.vector(), None, EPS)
    made = b.plain_mlp(x, w.matrix(40, HIDDEN), w.matrix(HIDDEN, 40), "gelu", w.vector(40))
    b.add_all_reduce(residual, made, bias=w.vector())
    vectors = b.linear(b.rounded(b.pool(residual, "mean")), w.matrix(HIDDEN, HIDDEN), w.vector())
    b.answer(b.activated(vectors, "tanh"))
    return b


def masked(part: Part = ALONE) -> ProgramBuilder:
    """The maxima of columns that ranks divide, of all rows of a sequence."""
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab))
    x = b.layer_norm(b.embed(**part.embedding()), w.vector(), w.vector(), EPS)
    logits = b.linear(x, w.matrix(32, HIDDEN), w.vector(32))
    b.answer(b.pool_columns(logits, "max", tuple(part.bounds(32 * part.world))))
    return b


def tokens(part: Part = ALONE) -> ProgramBuilder:
    """The mean of all rows, and columns of each token for sequences that ask for them."""
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab))
    residual = b.embed(**part.embedding())
    b.normalize(residual, w.vector(), w.vector(), EPS)
    vectors = b.pool(residual, "mean")
    b.keep("columns", b.linear(b.token_rows(residual), w.matrix(41, HIDDEN, whole=True), w.vector(41)))
    b.answer(vectors)
    return b


def recurrent(part: Part = ALONE) -> ProgramBuilder:
    """A convolution of columns that ranks divide between two products, and a state for each slot."""
    own = HIDDEN // part.world
    shape = RankShape(HIDDEN, part.vocab, states=(StateKind(3 * own * 4, draft_bytes=own * 4),))
    w, b = part.weights, part.builder(shape)
    residual = b.embed(**part.embedding())
    x = b.rms_norm(residual, w.vector(), EPS)
    before, after, values = b.split(b.linear(x, w.matrix(3 * own, HIDDEN)), own, own)
    made = b.causal_conv(
        b.multiply(before, values),
        w.vector(4 * own),
        taps=4,
        state=CacheIndex(0, 0),
        bias=w.vector(own),
        activation="silu",
    )
    b.add_all_reduce(residual, b.linear_partial(b.multiply_rounded(made, after), w.matrix(HIDDEN, own)))
    b.sample(b.lm_head(b.rms_norm(residual, w.vector(), EPS), w.matrix(VOCAB // part.world, HIDDEN)))
    return b


def gated(part: Part = ALONE, *, format: str = "bf16") -> ProgramBuilder:
    """A gated delta network, and attention with a gate."""
    world = part.world
    heads = DeltaHeads(keys=2 // world, values=4 // world, key_dim=16, value_dim=24)
    offset, values = 3 * heads.convolved * 4, heads.values * heads.value_dim
    drafts = round_up(4 * heads.convolved, 64) + round_up(4 * heads.replayed, 64)
    caches, states = (
        (CacheKind(Heads(2, 1, 32)),),
        (StateKind(offset + round_up(4 * heads.kept, 64), draft_bytes=drafts),),
    )
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab, caches, states))
    residual = b.embed(**part.embedding())
    x = b.rms_norm(residual, w.vector(), EPS)
    qkvz, gates = (b.linear(x, w.matrix(n, HIDDEN, format)) for n in (heads.convolved + values, 2 * heads.values))
    _, z = b.split(qkvz, heads.convolved)
    convolved = b.causal_conv(qkvz, w.vector(4 * heads.convolved), taps=4, state=CacheIndex(0, 0), activation="silu")
    made = b.gated_delta(
        convolved,
        gates,
        decay=w.decays(heads.values),
        decay_bias=w.vector(heads.values),
        heads=heads,
        state=CacheIndex(0, 0),
        offset=offset,
    )
    normed = b.gated_head_norm(made, z, w.vector(heads.value_dim), eps=EPS, heads=heads.values)
    b.add_all_reduce(residual, b.linear_partial(normed, w.matrix(HIDDEN, values, format)))
    qkv, gate = b.split(b.linear(b.rms_norm(residual, w.vector(), EPS), w.matrix(192, HIDDEN, format)), 128)
    out = b.attention(b.qkv_rope(qkv, cache=CacheIndex(0, 0), rope=w.rope()), cache=CacheIndex(0, 0), scale=0.2)
    b.sigmoid_gate(out, gate)
    b.add_all_reduce(residual, b.linear_partial(out, w.matrix(HIDDEN, 64, format)))
    b.sample(b.lm_head(b.rms_norm(residual, w.vector(), EPS), w.matrix(VOCAB // world, HIDDEN, format)))
    return b


def sliding(
    part: Part = ALONE,
    *,
    window: Window = SLIDING,
    window_pages: tuple[int, ...] = (),
    format: str = "bf16",
    borrowed: bool = False,
    narrowed: bool = False,
) -> ProgramBuilder:
    """Attention to all tokens, and to those of a window, which may have a page table of its own. Where the caches are
    `borrowed`, more layers read them, those rows alone that want logits if the program is `narrowed`."""
    caches = CacheKind(Heads(2, 1, 32)), CacheKind(Heads(2, 2, 48, value_dim=40), window)
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab, caches), window_pages=window_pages)
    residual = b.embed(**part.embedding())
    for kind, source in [(0, "projected"), (1, "projected"), *([(0, "cached"), (1, "cached")] if borrowed else ())]:
        heads, place = caches[kind].heads, CacheIndex(kind, 0)
        if narrowed and source == "cached" and not b.is_narrow:
            residual, _ = b.narrow(residual, None)
        x = b.rms_norm(residual, w.vector(), EPS)
        stored = heads.kv * (heads.dim + heads.values) if source == "projected" else 0
        q = b.qkv_rope(
            b.linear(x, w.matrix(heads.query * heads.dim + stored, HIDDEN, format)),
            cache=place,
            rope=w.rope(),
            source=source,
        )
        out = b.attention(q, cache=place, scale=0.2, value_scale=0.7)
        b.add_all_reduce(residual, b.linear_partial(out, w.matrix(HIDDEN, heads.query * heads.values, format)))
    b.sample(b.lm_head(b.rms_norm(residual, w.vector(), EPS), w.matrix(VOCAB // part.world, HIDDEN, format)))
    return b


def spaces(part: Part = ALONE, *, format: str = "bf16", is_local: bool = False) -> ProgramBuilder:
    """A state space, whose results are gated, and normed over the heads of all ranks, and an MLP without a gate. If
    `is_local` each head is normed by itself."""
    world = part.world
    heads = DeltaHeads(keys=2 // world, values=4 // world, key_dim=16, value_dim=32 if is_local else 24, gates=1)
    offset, values = 3 * heads.convolved * 4, heads.values * heads.value_dim
    drafts = round_up(4 * heads.convolved, 64) + round_up(4 * heads.replayed, 64)
    states = (StateKind(offset + round_up(4 * heads.kept, 64), draft_bytes=drafts),)
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab, states=states))
    residual = b.embed(**part.embedding())
    x = b.rms_norm(residual, w.vector(), EPS)
    made, steps = (b.linear(x, w.matrix(n, HIDDEN, format)) for n in (heads.convolved + values, heads.values))
    _, z = b.split(made, heads.convolved)
    convolved = b.causal_conv(
        made,
        w.vector(4 * heads.convolved),
        taps=4,
        state=CacheIndex(0, 0),
        bias=w.vector(heads.convolved),
        activation="silu",
    )
    out = b.state_space(
        convolved,
        steps,
        decay=w.decays(heads.values),
        step_bias=w.vector(heads.values),
        skip=w.vector(heads.values),
        steps=(0.01, 2.0),
        heads=heads,
        state=CacheIndex(0, 0),
        offset=offset,
    )
    gated = b.multiply(out, z, activation="silu")
    if is_local:
        normed = b.group_norm(gated, [w.vector(heads.value_dim) for _ in range(heads.values)], EPS)
    else:
        b.divided_norm(gated, [w.vector(values)], counted=(values,), columns=(values * world,), eps=EPS)
        normed = b.rounded(gated)
    b.add_all_reduce(residual, b.linear_partial(normed, w.matrix(HIDDEN, values, format)))
    x = b.rms_norm(residual, w.vector(), EPS)
    b.add_all_reduce(residual, b.plain_mlp(x, w.matrix(40, HIDDEN, format), w.matrix(HIDDEN, 40, format), "relu2"))
    b.sample(b.lm_head(b.rms_norm(residual, w.vector(), EPS), w.matrix(VOCAB // world, HIDDEN, format)))
    return b


def shared(part: Part = ALONE, *, format: str = "bf16") -> ProgramBuilder:
    """Inputs of two layers; attention whose values are its keys, then attention to the same cache; experts."""
    world, kind = part.world, CacheKind(Heads(2, 1, 32))
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab, (kind,)))
    residual = b.embed(**part.embedding())
    own, bounds = 64 // world, tuple(part.bounds(64))
    projection, table, norm = w.matrix(own, HIDDEN, format), w.matrix(VOCAB, own), w.vector(32)
    inputs = b.layer_inputs(b.rounded(residual), projection, table, norm, eps=EPS, scale=0.5, bounds=bounds)
    for layer, (source, columns) in enumerate((("keys", 96), ("cached", 64))):
        if layer:
            residual, inputs = b.narrow(residual, inputs)
        qkv = b.linear(b.rms_norm(residual, w.vector(), EPS), w.matrix(columns, HIDDEN, format))
        norms = {"norm": "before", "q_norm": w.vector(32), "eps": EPS, "norm_values": True}
        q = b.qkv_rope(qkv, cache=CacheIndex(0, 0), rope=w.rope(), source=source, **norms)
        attended = b.linear_partial(b.attention(q, cache=CacheIndex(0, 0), scale=0.2), w.matrix(HIDDEN, 64, format))
        b.add_all_reduce(residual, attended, eps=EPS, post_norm=w.vector(), scale=w.vector(1))
        gate = b.linear(b.rounded(residual), w.matrix(32 // world, HIDDEN, format))
        _, mine, _ = b.split(inputs, 32 * layer + part.bounds(32)[part.rank], 32 // world)
        gated = b.multiply_rounded(mine, gate, "gelu_tanh")
        made = b.linear_partial(gated, w.matrix(HIDDEN, 32 // world, format))
        b.add_all_reduce(residual, made, eps=EPS, post_norm=w.vector(), scale=w.vector(1))
    x = b.rms_norm(residual, w.vector(), EPS)
    total = b.summed(b.gated_mlp(x, w.matrix(128, HIDDEN), w.matrix(HIDDEN, 64), "gelu_tanh"), w.vector(), EPS)
    shapes = (64, HIDDEN), (HIDDEN, 32)
    gate_up, down = (ExpertMatrices(tuple(w.matrix(n, k, format) for _ in range(4)), None) for n, k in shapes)
    router = Router(w.matrix(4, HIDDEN, whole=True), factors=w.vector(4), x=b.rms_norm(residual, w.vector(), EPS))
    routing = Routing(num_experts=4, top_k=2)
    made = b.experts(x, routing, router, held=range(4), gate_up=gate_up, down=down, activation="gelu_tanh")
    b.add_all_reduce(total, made, eps=EPS, post_norm=w.vector())
    b.add_norm(residual, total, w.vector(), EPS, scale=w.vector(1))
    b.sample(b.lm_head(b.rms_norm(residual, w.vector(), EPS), w.matrix(VOCAB // world, HIDDEN)))
    return b


def keyed(part: Part = ALONE, *, format: str = "bf16") -> ProgramBuilder:
    """The delta rule with decays by dimension of the keys."""
    world = part.world
    heads = DeltaHeads(keys=4 // world, values=4 // world, key_dim=16, value_dim=16, gates=17)
    offset, values = 3 * heads.convolved * 4, heads.values * heads.value_dim
    drafts = round_up(4 * heads.convolved, 64) + round_up(4 * heads.replayed, 64)
    states = (StateKind(offset + round_up(4 * heads.kept, 64), draft_bytes=drafts),)
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab, states=states))
    residual = b.embed(**part.embedding())
    x = b.rms_norm(residual, w.vector(), EPS)
    qkv, narrow = (b.linear(x, w.matrix(n, HIDDEN, format)) for n in (heads.convolved, heads.values + 64))
    beta, first_decays, first_gate = b.split(narrow, heads.values, 32)
    made = b.key_delta(
        b.causal_conv(qkv, w.vector(4 * heads.convolved), taps=4, state=CacheIndex(0, 0), activation="silu"),
        beta,
        b.linear(b.rounded(first_decays), w.matrix(values, 32, format)),
        decay=w.decays(heads.values),
        decay_bias=w.vector(values),
        heads=heads,
        state=CacheIndex(0, 0),
        offset=offset,
    )
    gate = b.linear(b.rounded(first_gate), w.matrix(values, 32, format))
    normed = b.gated_head_norm(made, gate, w.vector(heads.value_dim), eps=EPS, heads=heads.values, by="sigmoid")
    b.add_all_reduce(residual, b.linear_partial(normed, w.matrix(HIDDEN, values, format)))
    b.sample(b.lm_head(b.rms_norm(residual, w.vector(), EPS), w.matrix(VOCAB // world, HIDDEN, format)))
    return b


def predicting(part: Part = ALONE, *, format: str = "bf16") -> ProgramBuilder:
    """Attention to what was made of tokens and of what is given beside them, and what is kept of it. Not one of
    `all_programs`: it computes what it is given before each step."""
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab, (CacheKind(Heads(2, 1, 32)),), extra_tokens=1))
    token, hidden = b.embed(**part.embedding()), b.given("hidden", HIDDEN)
    beside = b.norms_beside([(token, w.vector(), EPS), (hidden, w.vector(), EPS)])
    first, end = part.bounds(2 * HIDDEN)[part.rank :][:2]
    mine = b.columns(beside, range(first, end))
    residual = b.summed(b.linear_partial(mine, w.matrix(HIDDEN, end - first, format)))
    x = b.rms_norm(residual, w.vector(), EPS)
    q = b.qkv_rope(b.linear(x, w.matrix(128, HIDDEN, format)), cache=CacheIndex(0, 0), rope=w.rope())
    b.add_all_reduce(
        residual, b.linear_partial(b.attention(q, cache=CacheIndex(0, 0), scale=0.2), w.matrix(HIDDEN, 64, format))
    )
    x = b.rms_norm(residual, w.vector(), EPS)
    b.sample(b.lm_head(x, w.matrix(VOCAB // part.world, HIDDEN, format)))
    b.keep("hidden", x)
    return b


def placing(part: Part = ALONE) -> ProgramBuilder:
    """Embeddings that rows of a feature pool replace: two tiles of eight rows. Not one of `all_programs`: it places
    rows."""
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab), feature_tiles=2)
    residual = b.embed(**part.embedding())
    b.place_rows("pool", residual, 8)
    x = b.rms_norm(residual, w.vector(), EPS)
    b.sample(b.lm_head(x, w.matrix(VOCAB // part.world, HIDDEN)))
    b.keep("rows", x)
    return b


def adapting(part: Part = ALONE) -> ProgramBuilder:
    """A gated MLP whose products adapters update. Not one of `all_programs`: matrices have memory for them."""
    w, b = part.weights, part.builder(RankShape(HIDDEN, part.vocab))
    residual = b.embed(**part.embedding())
    inter = 64 // part.world
    gate_up, down = (
        MatrixShape(n, k, adapters=Adapters(2, 4, parts, k, ((0,), (parts - 1,)) * (n // 32)))
        for n, k, parts in ((2 * inter, HIDDEN, 2), (HIDDEN, inter, 1))
    )
    x = b.rms_norm(residual, w.vector(), EPS)
    b.add_all_reduce(residual, b.gated_mlp(x, gate_up, down, "silu"))
    b.sample(b.lm_head(b.rms_norm(residual, w.vector(), EPS), w.matrix(VOCAB // part.world, HIDDEN)))
    return b


def tower(part: Part = ALONE, *, format: str = "bf16") -> ProgramBuilder:
    """A tile of 8 x 8 patches, which see each other, and a row of features of each 2 x 2 of them. Not one of
    `all_programs`: its only sequence is a tile."""
    kind = CacheKind(Heads(2, 2, 32), Window(bidirectional=True))
    shape = RankShape(HIDDEN, [0] + [1] * part.world, (kind,))
    w, b = part.weights, part.builder(shape, max_slots=1, max_logit_rows=0)
    first, end = part.bounds(192)[part.rank :][:2]
    patches = b.columns(b.rounded(b.given("patches", 192)), range(first, end))
    residual = b.summed(b.linear_partial(patches, w.matrix(HIDDEN, end - first)))
    for _ in range(2):
        qkv = b.linear(b.layer_norm(residual, w.vector(), w.vector(), EPS), w.matrix(192, HIDDEN, format))
        q = b.qkv_rope(qkv, cache=CacheIndex(0, 0), rope=w.rope())
        attended = b.linear_partial(b.attention(q, cache=CacheIndex(0, 0), scale=0.2), w.matrix(HIDDEN, 64, format))
        b.add_all_reduce(residual, attended, bias=w.vector())
    merged = b.merge_rows(b.layer_norm(residual, w.vector(), w.vector(), EPS), side=8, factor=2)
    first, end = part.bounds(4 * HIDDEN)[part.rank :][:2]
    mine = b.columns(merged, range(first, end))
    b.keep("features", b.rounded(b.summed(b.linear_partial(mine, w.matrix(HIDDEN, end - first, format)))))
    return b


def grid_tower(part: Part = ALONE) -> ProgramBuilder:
    """Squares of 2 x 2 patches, which are rotated by coordinates, and whose positions are interpolated. Not one of
    `all_programs`: its only sequence is an image."""
    kind = CacheKind(Heads(2, 2, 32), Window(bidirectional=True))
    shape = RankShape(HIDDEN, [0] + [1] * part.world, (kind,))
    w, b = part.weights, part.builder(shape, max_slots=1, max_logit_rows=0)
    first, end = part.bounds(192)[part.rank :][:2]
    partial = b.linear_partial(
        b.columns(b.rounded(b.given("patches", 192)), range(first, end)), w.matrix(HIDDEN, end - first)
    )
    b.add_taps(partial, w.matrix(32, HIDDEN), name="taps", first_row=32 * part.rank, taps=4)
    residual, rope = b.summed(partial), w.rope()
    b.rotate_by(rope, ("height", "width") * 8)
    qkv = b.linear(b.layer_norm(residual, w.vector(), w.vector(), EPS), w.matrix(192, HIDDEN))
    attended = b.attention(b.qkv_rope(qkv, cache=CacheIndex(0, 0), rope=rope), cache=CacheIndex(0, 0), scale=0.2)
    b.add_all_reduce(residual, b.linear_partial(attended, w.matrix(HIDDEN, 64)), bias=w.vector())
    bounds = w.vector(2)
    b.keep("features", b.merge_rows(b.clamped(b.rounded(residual), bounds), side=2, factor=2, many=True))
    b.keep("means", b.rounded(b.mean_rows(residual, side=2, factor=2, many=True, shift=w.vector(), eps=EPS)))
    return b


def recorders(part: Part = ALONE) -> dict[str, Callable[[], ProgramBuilder]]:
    """Return functions that record one program of each kind, with activations in bf16 and in int8.

    Two of them are fused in another way, and four pool.
    """
    found: dict[str, Callable[..., ProgramBuilder]] = {"pooled": pooled, "recurrent": recurrent}
    found |= {"pooled encoder": encoder, "pooled maxima": masked, "pooled, with tokens": tokens}
    for format in ("bf16", "int8"):
        for make in (dense, latent, mixture, gated, sliding, spaces, shared, keyed):
            found[f"{make.__name__}, {format}"] = functools.partial(make, format=format)
    found["norms of groups"] = functools.partial(spaces, is_local=True)
    found["norms after"] = functools.partial(dense, post_norm=True)
    found["norms over heads"] = functools.partial(dense, divided_norm=True)
    found["no norms before"] = functools.partial(dense, post_norm=True, pre_norm=False, format="int8")
    for format, group in (("bf16", 0), ("int8", 0), ("int4", 32)):
        numbers = {"format": format, "group": group}
        found[f"weighted rows, {format}"] = functools.partial(mixture, **numbers, weighs_input=True)
        found[f"no gates, {format}"] = functools.partial(mixture, **numbers, activation="relu2")
    found["divided router"] = functools.partial(mixture, held=range(32 * part.world), divided_router=True)
    found["in groups"] = functools.partial(dense, format="int4", group=32)
    return {f"{name}, {part.world}": functools.partial(make, part) for name, make in found.items()}


def all_programs(part: Part = ALONE) -> dict[str, ProgramBuilder]:
    """Return the programs of all `recorders`."""
    return {name: make() for name, make in recorders(part).items()}
