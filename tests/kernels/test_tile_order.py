"""Rows in the order of tiles: what norms and quantization write so, and the same bits as from other rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import kernel_ops
import kernel_reference as reference
import numaserve_kernel_tests as ops
import numpy as np
import operation_fields
import pytest
from kernel_reference import U16
from numaserve.kernels import PackedMatrix, Program, RopeTable, Team, Vector
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.program.buffers import Operand
from numaserve.workers.program.caches import CacheIndex, CacheKind, Heads
from numaserve.workers.program.native import make_program
from numaserve.workers.program.ops.products import Linear
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks, RankShape
from numpy.typing import NDArray

ROWS = (33, 65, 100, 257, 577)
# Heads whose columns are no whole lines of tiles, and whose padding is two lines.
HIDDEN, INNER, VOCAB, HEADS, DIM = 64, 160, 16, 3, 40
TOKENS, SLOTS, CACHE = 577, 3, CacheIndex(0, 0)


def values(rng: np.random.Generator, rows: int, columns: int) -> U16:
    return reference.to_bf16(rng.standard_normal((rows, columns)))


@pytest.fixture
def tiled_isa(isa: str) -> str:
    """Return an instruction set that takes rows in the order of tiles."""
    if not ops.takes_tiled_rows(isa):
        pytest.skip("the instruction set has no tile registers")
    return isa


def in_rows(tiled: NDArray) -> NDArray:
    """Return rows whose memory is in the order of tiles: [groups of 32 rows][lines of a row][32 rows][a line]."""
    rows, columns = tiled.shape
    line = 64 // tiled.itemsize
    return tiled.reshape(rows // 32, columns // line, 32, line).transpose(0, 2, 1, 3).reshape(rows, columns)


@pytest.mark.parametrize("cols", [40, 1120])
def test_a_norm_writes_int8_in_the_order_of_tiles(tiled_isa: str, rng: np.random.Generator, cols: int) -> None:
    depth = -(-cols // 64) * 64
    weight = rng.standard_normal(cols).astype(np.float32)
    for m in ROWS:
        x = rng.standard_normal((m, cols)).astype(np.float32)
        x[-1] = np.nan  # the scale of its row alone
        out, rows = kernel_ops.rms_norm_quantized(tiled_isa, x, weight, 1e-5, group=0, fused=True)
        for fused, threads in ((True, 1), (False, 7)):
            tiled = np.full((kernel_ops.padded(m), rows.shape[1]), 99, np.int8)
            ops.rms_norm(
                tiled_isa, kernel_ops.pad_columns(x), cols, weight, 1e-5, out, tiled, 0, fused, threads, tiled=True
            )
            np.testing.assert_array_equal(in_rows(tiled)[:m, :depth], rows[:, :depth])
            scales = tiled.reshape(len(tiled) // 32, -1)[:, 32 * depth : 32 * depth + 128].reshape(-1, 4)
            np.testing.assert_array_equal(scales[:m], rows[:, depth : depth + 4])


# 5120 columns are 80 k tiles: several slabs. With few panels a product is cut into parts of k.
@pytest.mark.parametrize("n, k", [(96, 5120), (64, 40), (1056, 1120)])
def test_products_of_int8_in_the_order_of_tiles_have_the_same_bits(
    tiled_isa: str, rng: np.random.Generator, n: int, k: int
) -> None:
    weight, a = kernel_ops.packed(values(rng, n, k), weights="int8"), values(rng, max(ROWS), k)
    expected = kernel_ops.multiply(tiled_isa, a, weight)
    for m in ROWS:
        for threads in (1, 3, 43):
            for caches in (kernel_ops.CACHES, (8 << 10, 16 << 10)):
                found = kernel_ops.multiply(tiled_isa, a[:m], weight, threads=threads, caches=caches, tiled=True)
                np.testing.assert_array_equal(found, expected[:m])


@dataclass(frozen=True)
class Layer:
    """Weights of a model's layer in one format, and its rotation."""

    rng: np.random.Generator
    weights: str

    def matrix(self, *rows: int, columns: int) -> PackedMatrix:
        """Return parts with these numbers of rows, one below the other."""
        parts = [reference.to_bf16(columns**-0.5 * self.rng.standard_normal((each, columns))) for each in rows]
        return kernel_ops.packed(*parts, weights=self.weights)

    def heads(self, b: ProgramBuilder, x: Operand) -> Operand:
        """Append attention with keys and values of heads."""
        qkv = b.linear(x, self.matrix((HEADS + 2) * DIM, columns=HIDDEN))
        return b.attention(b.qkv_rope(qkv, cache=CACHE, rope=rotation(DIM)), cache=CACHE, scale=0.2)

    def gates(self, b: ProgramBuilder, x: Operand) -> Operand:
        """Append attention and a gate."""
        gate = b.linear(x, self.matrix(HEADS * DIM, columns=HIDDEN))
        attended = self.heads(b, x)
        b.sigmoid_gate(attended, gate)
        return attended

    def norms(self, b: ProgramBuilder, x: Operand) -> Operand:
        """Append attention, a product of its results, and gated norms of heads of 16 columns."""
        made = b.linear(self.heads(b, x), self.matrix(80, columns=HEADS * DIM))
        return b.gated_head_norm(made, made, ones(16), eps=1e-5, heads=5)

    def latents(self, b: ProgramBuilder, x: Operand) -> Operand:
        """Append attention over latents."""
        q, kv = (b.linear(x, self.matrix(rows, columns=HIDDEN)) for rows in (2 * 96, 96))
        w_uk, w_uv = self.matrix(2 * 64, columns=64), self.matrix(2 * 32, columns=64)
        options = {"cache": CACHE, "rope": rotation(32), "norm": ones(64), "eps": 1e-5, "scale": 0.1}
        return b.latent_attention(q, kv, w_uk, w_uv, **options)


def ones(count: int) -> Vector:
    return Vector(np.ones(count, np.float32))


def rotation(dim: int) -> RopeTable:
    angles = np.outer(np.arange(TOKENS), 100.0 ** -np.arange(0, 1, 2 / dim)).astype(np.float32)
    return RopeTable(np.cos(angles), np.sin(angles))


def make_model(rng: np.random.Generator, kind: str, weights: str, threads: int) -> Program:
    """Return a model of one layer, with attention of a kind and an MLP."""
    pages = -(-TOKENS // PAGE_SIZE)
    heads = Heads(2, 1, 96, 64, is_latent=True) if kind == "latents" else Heads(HEADS, 1, DIM)
    setup = ProgramSetup(
        RankShape(HIDDEN, [0, VOCAB], (CacheKind(heads),)),
        Capacity.of_program(TOKENS, 16, SLOTS, pages, SLOTS * pages),
        Ranks((threads,)),
    )
    b, layer = ProgramBuilder(setup), Layer(rng, weights)
    residual = b.embed(kernel_ops.packed(values(rng, VOCAB, HIDDEN)), first_row=0)
    attended = getattr(layer, kind)(b, b.rms_norm(residual, ones(HIDDEN), 1e-5))
    b.add_all_reduce(residual, b.linear_partial(attended, layer.matrix(HIDDEN, columns=attended.cols)))
    x, gate_up = b.rms_norm(residual, ones(HIDDEN), 1e-5), layer.matrix(INNER, INNER, columns=HIDDEN)
    b.add_all_reduce(residual, b.gated_mlp(x, gate_up, layer.matrix(HIDDEN, columns=INNER), "silu"))
    b.sample(b.lm_head(b.rms_norm(residual, ones(HIDDEN), 1e-5), kernel_ops.packed(values(rng, VOCAB, HIDDEN))))
    operations = b.fused()
    assert sum(isinstance(each, Linear) and each.reads_alone for each in operations) >= 3
    program = make_program(setup, operations, Team([-1] * threads))
    for slot in range(SLOTS):
        program.init_slot(slot, operation_fields.GREEDY | {"num_logprobs": VOCAB})
        program.append_pages(slot, list(range(slot * pages, (slot + 1) * pages)))
    return program


def logprobs_of_last(program: Program, parts: Sequence[tuple[int, int, list[int]]]) -> list[list[tuple[int, float]]]:
    """Return the log-probabilities after the last token of each part (slot, start, tokens), all in one step."""
    plan = np.array([(slot, start, len(tokens), 0, 1, 0) for slot, start, tokens in parts], np.int32)
    tokens = np.array([token for *_, part in parts for token in part], np.int32)
    results, *_ = program.step(plan, tokens, np.empty(0, np.int32))
    return [list(zip(sampled[2], sampled[3], strict=True)) for _, sampled, *_ in results if sampled is not None]


# Steps of 64 rows and fewer pass rows as rows; steps of more rows pass tiles.
@pytest.mark.parametrize(
    ("kind", "weights"),
    [("heads", "bf16"), ("heads", "int8"), ("gates", "bf16"), ("norms", "bf16"), ("latents", "bf16")],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_prompt_has_the_same_bits_whole_in_chunks_and_in_company(
    rng: np.random.Generator, kind: str, weights: str, threads: int
) -> None:
    program = make_model(rng, kind, weights, threads)
    for m in (65, 80, 257, TOKENS):
        tokens = rng.integers(0, VOCAB, m).tolist()

        def cut(step: int, tokens: list[int] = tokens) -> list[tuple[int, float]]:
            bounds = [*range(0, len(tokens), step), len(tokens)]
            return [logprobs_of_last(program, [(0, a, tokens[a:b])]) for a, b in pairwise(bounds)][-1][0]

        expected = cut(32)
        assert cut(100) == expected
        assert cut(m) == expected
        others = [(1, 0, rng.integers(0, VOCAB, 3).tolist()), (2, 0, rng.integers(0, VOCAB, 90).tolist())]
        if m + 93 <= TOKENS:
            assert logprobs_of_last(program, [others[0], (0, 0, tokens), others[1]])[1] == expected
