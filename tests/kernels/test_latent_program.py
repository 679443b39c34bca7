"""Multi-head latent attention as the Program builder records it, against float64, and to the last bit among itself."""

import ctypes
from dataclasses import dataclass, field

import kernel_ops
import kernel_reference as reference
import numpy as np
import operation_fields
import pytest
from numaserve.kernels import PackedMatrix, Program, RopeTable, Team, Vector
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.settings import ActivationDtype, ModelSettings
from numaserve.workers.program.caches import CacheIndex, CacheKind, Heads
from numaserve.workers.program.given import GivenMatrix
from numaserve.workers.program.native import make_program
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks, RankShape

PAGE = reference.PAGE
HIDDEN, VOCAB, NOPE, ROPE, LATENT, VALUES = 64, 16, 64, 32, 128, 32
CONTEXT, SLOTS, EPS, SCALE = 640, 3, 1e-5, 0.09
NONE = np.empty(0, np.int32)

Step = list[tuple[int, int, list[int]]]  # slot, start, tokens


@dataclass(frozen=True)
class Format:
    """Of W_UK and W_UV, and what they are multiplied by."""

    weights: str = "bf16"
    group: int = 0
    activations: ActivationDtype = "bf16"

    def packed(self, weight: reference.U16) -> PackedMatrix:
        """Rows of all heads below each other."""
        return kernel_ops.packed(
            weight.reshape(-1, weight.shape[-1]), weights=self.weights, group=self.group, activations=self.activations
        )

    def values(self, weight: reference.U16) -> reference.F64:
        """What the format makes of them."""
        return self.packed(weight).to_numpy().astype(np.float64).reshape(weight.shape)

    def taken(self, x: reference.F64) -> reference.F64:
        """Activations [..., columns of a head] as the products read them."""
        x = reference.rounded(x)
        if self.weights != "int8" and (self.group == 0 or self.activations == "bf16"):
            return x
        codes, scales = reference.quantized(x.reshape(-1, self.group or x.shape[-1]))
        return (codes * scales[:, None].astype(np.float64)).reshape(x.shape)


FORMATS = [
    Format(),
    Format("int8"),
    Format("int8_group", 64),
    Format("int8_group", 64, "int8"),
    Format("int4", 32),
    Format("int4", 32, "int8"),
    Format("fp8", 128),
]


@dataclass
class Layer:
    """Weights of one layer in bf16, [n, k]; those of heads [heads, n, k]."""

    q: reference.U16
    kv: reference.U16
    uk: reference.U16
    uv: reference.U16
    norm: reference.F32


@dataclass
class Model:
    """Embeddings, one layer of attention, and a head on what it gives."""

    heads: int
    embedding: reference.U16
    layer: Layer
    head: reference.U16
    format: Format = Format()
    cos: reference.F32 = field(init=False)
    sin: reference.F32 = field(init=False)

    def __post_init__(self) -> None:
        angles = np.outer(np.arange(CONTEXT), 100.0 ** (-np.arange(ROPE // 2) / (ROPE / 2)))
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def program(self, threads: int) -> Program:
        setup = ProgramSetup(
            RankShape(HIDDEN, [0, VOCAB], (CacheKind(Heads(self.heads, 1, LATENT + ROPE, LATENT, is_latent=True)),)),
            Capacity.of_program(512, 64, SLOTS, CONTEXT // PAGE, SLOTS * CONTEXT // PAGE),
            Ranks((threads,)),
        )
        b = ProgramBuilder(setup)
        layer = self.layer
        x = b.rms_norm(b.embed(kernel_ops.packed(self.embedding), first_row=0), _ones(HIDDEN), EPS)
        out = b.latent_attention(
            b.linear(x, kernel_ops.packed(layer.q)),
            b.linear(x, kernel_ops.packed(layer.kv)),
            self.format.packed(layer.uk),
            self.format.packed(layer.uv),
            cache=CacheIndex(0, 0),
            rope=RopeTable(self.cos, self.sin),
            norm=Vector(layer.norm),
            eps=EPS,
            scale=SCALE,
        )
        b.sample(b.lm_head(out, kernel_ops.packed(self.head)))
        return make_program(setup, b.fused(), Team([-1] * threads))

    def logits(self, tokens: list[int], first: int) -> reference.Bounded:
        """Of the positions from `first`, rounded to bf16 where the Program does. A rounding that falls otherwise there
        shows as one unit of some values: four of them, of the whole vector, are allowed for."""
        w = {name: reference.from_bf16(getattr(self.layer, name)).astype(np.float64) for name in ("q", "kv")}
        uk, uv = self.format.values(self.layer.uk), self.format.values(self.layer.uv)
        x = reference.from_bf16(self.embedding)[tokens]
        x = reference.rounded(reference.rms_norm(x, np.ones(HIDDEN, np.float32), EPS)[0])
        cos, sin = self.cos[: len(tokens)], self.sin[: len(tokens)]
        q = (x @ w["q"].T).reshape(len(tokens), self.heads, NOPE + ROPE)
        kv = x @ w["kv"].T
        latent = reference.rms_norm(kv[:, :LATENT], self.layer.norm, EPS)[0]
        key = reference.rope(kv[:, None, LATENT:], cos, sin)[:, 0]
        key = reference.rounded(np.concatenate([latent, key], axis=1))
        absorbed = np.einsum("thn,hln->thl", self.format.taken(q[..., :NOPE]), uk)
        query = reference.rounded(np.concatenate([absorbed, reference.rope(q[..., NOPE:], cos, sin)], axis=2))
        attended, _ = reference.attention(query[first:], key[:, None], key[:, None, :LATENT], first, scale=SCALE)
        out = np.einsum("thl,hvl->thv", self.format.taken(attended), uv).reshape(len(tokens) - first, -1)
        head = reference.from_bf16(self.head).astype(np.float64)
        bound = 4 * reference.BF16 * np.linalg.norm(out, axis=1)[:, None] * np.linalg.norm(head, axis=1)
        return reference.rounded(out) @ head.T, bound


def _ones(count: int) -> Vector:
    return Vector(np.ones(count, np.float32))


def make_model(rng: np.random.Generator, heads: int, format: Format = FORMATS[0]) -> Model:
    def weight(*shape: int) -> reference.U16:
        return reference.to_bf16(rng.standard_normal(shape) * shape[-1] ** -0.5)

    layer = Layer(
        q=weight(heads * (NOPE + ROPE), HIDDEN),
        kv=weight(LATENT + ROPE, HIDDEN),
        uk=weight(heads, LATENT, NOPE),
        uv=weight(heads, VALUES, LATENT),
        norm=rng.uniform(0.5, 1.5, LATENT).astype(np.float32),
    )
    embedding = reference.to_bf16(rng.standard_normal((VOCAB, HIDDEN)))
    return Model(heads, embedding, layer, weight(VOCAB, heads * VALUES), format)


def begin(program: Program, slot: int, pages: list[int]) -> None:
    program.init_slot(slot, operation_fields.GREEDY | {"num_logprobs": VOCAB})
    program.append_pages(slot, pages)


def run(program: Program, step: Step) -> list[dict[int, float]]:
    """Log-probabilities of all tokens after each sequence's last one."""
    rows = np.array([(slot, start, len(tokens), 0, 1, 0) for slot, start, tokens in step], np.int32)
    tokens = np.array([token for _, _, tokens in step for token in tokens], np.int32)
    results, *_ = program.step(rows, tokens, NONE)
    return [dict(zip(sampled[2], sampled[3], strict=True)) for _, sampled, *_ in results if sampled is not None]


def prompts(rng: np.random.Generator) -> list[list[int]]:
    return [rng.integers(0, VOCAB, length).tolist() for length in (600, 45, 300)]


def pages_of(slot: int) -> list[int]:
    return list(range(slot, SLOTS * CONTEXT // PAGE, SLOTS))


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("heads", [1, 3, 16])
def test_prefill_and_decode_give_what_float64_gives(rng: np.random.Generator, heads: int, format: Format) -> None:
    model, prompt = make_model(rng, heads, format), prompts(rng)[0]
    program = model.program(threads=2)
    begin(program, 0, pages_of(0))
    found = [run(program, [(0, 0, prompt[:500])]), run(program, [(0, 500, prompt[500:570])])]
    found += [run(program, [(0, at, [prompt[at]])]) for at in range(570, 600)]
    value, bound = model.logits(prompt, 499)
    for position, (logprobs,) in zip([0, *range(70, 101)], found, strict=True):
        row, most = value[position], bound[position].max()
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        kernel_ops.assert_within(np.array([logprobs[i] for i in range(VOCAB)]), expected, 2 * most)


@pytest.mark.parametrize(
    ("heads", "format"), [*((heads, FORMATS[0]) for heads in (1, 16)), *((3, format) for format in FORMATS)], ids=str
)
def test_a_sequence_has_the_same_bits_alone_and_in_a_batch_and_on_any_number_of_threads(
    rng: np.random.Generator, heads: int, format: Format
) -> None:
    model, texts = make_model(rng, heads, format), prompts(rng)
    alone = []
    for slot, text in enumerate(texts):
        program = model.program(threads=1)
        begin(program, slot, pages_of(slot))
        for at in range(0, len(text) - 5, 512):
            run(program, [(slot, at, text[at : min(at + 512, len(text) - 5)])])
        alone.append([run(program, [(slot, at, [text[at]])])[0] for at in range(len(text) - 5, len(text))])
    for threads in (1, 3):
        program = model.program(threads)
        for slot in range(SLOTS):
            begin(program, slot, pages_of(slot))
        for chunk in range(0, 600, 77):
            parts = [(slot, chunk, text[chunk : min(chunk + 77, len(text) - 5)]) for slot, text in enumerate(texts)]
            run(program, [part for part in parts if part[2]])
        for index in range(5):
            last = [(slot, len(text) - 5 + index) for slot, text in enumerate(texts)]
            together = run(program, [(slot, at, [texts[slot][at]]) for slot, at in last])
            assert together == [results[index] for results in alone]


def test_what_an_earlier_sequence_left_in_pages_does_not_show(rng: np.random.Generator) -> None:
    model, texts = make_model(rng, 3), prompts(rng)
    fresh, used = model.program(threads=2), model.program(threads=2)
    ((address, nbytes),) = used.kv_memory
    assert nbytes == SLOTS * CONTEXT * (LATENT + ROPE) * 2
    ctypes.memset(address, 0xFF, nbytes)  # NaN
    for program in (fresh, used):
        begin(program, 0, pages_of(0))
    steps: list[Step] = [[(0, 0, texts[0][:10])], [(0, 10, texts[0][10:290])], [(0, 290, texts[0][290:291])]]
    for step in steps:
        assert run(fresh, step) == run(used, step)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_rank_without_heads_takes_part_with_nothing(format: Format, rng: np.random.Generator) -> None:
    setup = ProgramSetup(
        RankShape(HIDDEN, [0, VOCAB], (CacheKind(Heads(0, 0, LATENT + ROPE, LATENT, is_latent=True)),)),
        Capacity.of_program(64, 64, 1, 2, 2),
        Ranks((2,)),
    )
    b, model = ProgramBuilder(setup), make_model(rng, 1)
    x = b.rms_norm(b.embed(kernel_ops.packed(model.embedding), first_row=0), _ones(HIDDEN), EPS)
    # The second leaves sums in the threads' scratch.
    q, kv = b.linear(x, GivenMatrix(0, HIDDEN)), b.linear(x, kernel_ops.packed(model.layer.kv))
    angles = np.zeros((64, ROPE // 2), np.float32)
    w_uk, w_uv, rope, norm = GivenMatrix(0, NOPE), GivenMatrix(0, LATENT), RopeTable(angles, angles), _ones(LATENT)
    out = b.latent_attention(q, kv, w_uk, w_uv, cache=CacheIndex(0, 0), rope=rope, norm=norm, eps=EPS, scale=SCALE)
    head = GivenMatrix(VOCAB, 0, format.weights, format.group)
    head.activations = format.activations
    b.sample(b.lm_head(out, head))
    program = make_program(setup, b.fused(), Team([-1, -1]))
    assert sum(nbytes for _, nbytes in program.kv_memory) == 0
    begin(program, 0, [0, 1])
    (found,) = run(program, [(0, 0, [1] * 40)])
    np.testing.assert_allclose(list(found.values()), -np.log(VOCAB), rtol=1e-6)


def test_a_latent_cache_of_codes_is_refused(rng: np.random.Generator) -> None:
    setup = ProgramSetup(
        RankShape(HIDDEN, [0, VOCAB], (CacheKind(Heads(2, 1, 96, 64, is_latent=True)),)),
        Capacity.of_program(32, 32, 1, 1, 1),
        Ranks((1,)),
        ModelSettings(kv_cache_dtype="int8"),
    )
    with pytest.raises(ValueError, match="KV cache of latents must be bf16"):
        make_program(setup, [], Team([-1]))
