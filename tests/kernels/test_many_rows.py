"""Products of many rows: copied blocks of activations, sums in tiles, and results that are written past the caches."""

import kernel_ops
import kernel_reference as reference
import numaserve_kernel_tests as ops
import numpy as np
import operation_fields
import pytest
from kernel_reference import U16
from numaserve.kernels import Program, Team, Vector
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.program.caches import CacheKind, Heads
from numaserve.workers.program.given import GivenMatrix
from numaserve.workers.program.native import make_program
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks, RankShape

WEIGHTS = ("bf16", "int8")
HIDDEN, INNER, VOCAB = 64, 160, 16
# Rows that fill tiles, pass alone in a last tile, or leave one to a second row block.
ROWS = (37, 48, 49, 64, 65, 80, 81, 256, 257, 293)
# Caches, `least_copied_pairs` and `row_block` of a blocking.
SMALL = (8 << 10, 16 << 10, 0, 512)  # blocks of 4 k tiles, slabs of 8, groups of a pair; results stream from 8 KiB on
IN_PLACE = (8 << 10, 16 << 10, 1 << 30, 128)  # the same, and nothing is copied
LARGE = (48 << 10, 1 << 30, 1 << 30)  # whole slabs; nothing is streamed or copied


def values(rng: np.random.Generator, rows: int, columns: int) -> U16:
    return reference.to_bf16(rng.standard_normal((rows, columns)))


# 5120 columns of int8 are 80 k tiles: several slabs. With few panels a product is cut into parts of k.
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("n, k", [(96, 5120), (64, 40), (1056, 1120)])
def test_many_rows_have_the_bits_of_a_row_alone(
    isa: str, rng: np.random.Generator, weights: str, n: int, k: int
) -> None:
    a, weight = values(rng, max(ROWS), k), kernel_ops.packed(values(rng, n, k), weights=weights)
    alone = {
        row: kernel_ops.multiply(isa, a[row : row + 1], weight) for row in (0, 31, 32, 36, 48, 64, 80, 255, 256, 292)
    }
    for caches in (kernel_ops.CACHES, SMALL, IN_PLACE):
        for m in ROWS:
            found = kernel_ops.multiply(isa, a[:m], weight, caches=caches)
            for row in (row for row in alone if row < m):
                np.testing.assert_array_equal(found[row : row + 1], alone[row])


# Nine pairs of panels among threads: shares that begin and end within a line of gated results, and shares of rows.
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("threads", [1, 2, 3, 5, 7])
def test_results_written_past_the_caches_have_the_same_bits(
    isa: str, rng: np.random.Generator, weights: str, threads: int
) -> None:
    a, gate, up = values(rng, 293, 1120), values(rng, 144, 1120), values(rng, 144, 1120)
    for m in (49, 160, 293):
        expected = kernel_ops.gated(isa, a[:m], gate, up, "silu", weights=weights, caches=LARGE)
        plain = kernel_ops.packed(gate, weights=weights)
        for caches in (SMALL, IN_PLACE):
            found = kernel_ops.gated(isa, a[:m], gate, up, "silu", threads, weights, caches=caches)
            np.testing.assert_array_equal(found, expected)
        for bf16 in (True, False):
            expected = kernel_ops.multiply(isa, a[:m], plain, bf16=bf16, caches=LARGE)
            for caches in (SMALL, IN_PLACE):
                found = kernel_ops.multiply(isa, a[:m], plain, bf16=bf16, threads=threads, caches=caches)
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_many_rows_are_added_to_what_is_there(isa: str, rng: np.random.Generator, weights: str) -> None:
    a, weight = values(rng, 100, 2048), kernel_ops.packed(values(rng, 96, 2048), weights=weights)
    before = rng.standard_normal((100, 96)).astype(np.float32)
    product = kernel_ops.multiply(isa, a, weight, caches=SMALL)
    found = kernel_ops.multiply(isa, a, weight, onto=before, caches=SMALL)
    np.testing.assert_array_equal(found, before + product)


def test_many_rows_without_depth_are_zero_and_biased(isa: str, rng: np.random.Generator) -> None:
    bias = rng.standard_normal(64).astype(np.float32)
    found = kernel_ops.multiply(isa, values(rng, 100, 0), GivenMatrix(64, 0, "bf16", 0), bias)
    np.testing.assert_array_equal(found, np.broadcast_to(bias, (100, 64)))


def in_rows(tiled: U16) -> U16:
    """Rows whose memory is in the order of tiles: [groups of 32 rows][columns / 32][32 rows][32 columns]."""
    rows, columns = tiled.shape
    return tiled.reshape(rows // 32, columns // 32, 32, 32).transpose(0, 2, 1, 3).reshape(rows, columns)


# Shares of threads have whole row blocks, some rows of one, and half lines.
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("m", [33, 65, 100, 257, 293])
def test_products_exchange_rows_in_the_order_of_tiles(isa: str, rng: np.random.Generator, weights: str, m: int) -> None:
    if not ops.takes_tiled_rows(isa):
        pytest.skip("the instruction set has no tile registers")
    group = 32 if weights == "int4" else 0
    a, gate, up, down = (values(rng, rows, columns) for rows, columns in ((m, 96), (160, 96), (160, 96), (96, 160)))
    weight, before = kernel_ops.packed(down), rng.standard_normal((m, 96)).astype(np.float32)
    hidden = kernel_ops.gated(isa, a, gate, up, "silu", weights=weights, group=group)
    expected = kernel_ops.multiply(isa, hidden, weight, onto=before)
    for threads in (1, 3, 7):
        for caches in (kernel_ops.CACHES, SMALL):
            tiled = kernel_ops.gated(isa, a, gate, up, "silu", threads, weights, group, caches=caches, tiled=True)
            np.testing.assert_array_equal(in_rows(tiled)[:m], hidden)
            out = before.copy()
            options = (0.0, False, True, False, threads, *caches)
            ops.gemm(isa, tiled, m, weight, None, "none", out, None, *options, tiled_rows=True)
            np.testing.assert_array_equal(out, expected)


def make_mlp(rng: np.random.Generator, threads: int) -> Program:
    """Embeddings, an MLP on their norms, and a head: the logits after a token depend on that token alone."""
    pages = -(-max(ROWS) // PAGE_SIZE)
    setup = ProgramSetup(
        RankShape(HIDDEN, [0, VOCAB], (CacheKind(Heads(1, 1, 32)),)),
        Capacity.of_program(max(ROWS), 16, 1, pages, pages),
        Ranks((threads,)),
    )
    b, norm = ProgramBuilder(setup), Vector(np.ones(HIDDEN, np.float32))
    residual = b.embed(kernel_ops.packed(values(rng, VOCAB, HIDDEN)), first_row=0)
    gate_up = kernel_ops.packed(values(rng, INNER, HIDDEN), values(rng, INNER, HIDDEN))
    down = kernel_ops.packed(values(rng, HIDDEN, INNER))
    b.add_all_reduce(residual, b.gated_mlp(b.rms_norm(residual, norm, 1e-5), gate_up, down, "silu"))
    b.sample(b.lm_head(b.rms_norm(residual, norm, 1e-5), kernel_ops.packed(values(rng, VOCAB, HIDDEN))))
    program = make_program(setup, b.fused(), Team([-1] * threads))
    program.init_slot(0, operation_fields.GREEDY | {"num_logprobs": VOCAB})
    program.append_pages(0, list(range(pages)))
    return program


def logprobs_after(program: Program, tokens: list[int]) -> list[tuple[int, float]]:
    plan = np.array([(0, 0, len(tokens), 0, 1, 0)], np.int32)
    results, *_ = program.step(plan, np.array(tokens, np.int32), np.empty(0, np.int32))
    ((_, sampled, *_),) = results
    assert sampled is not None
    return list(zip(sampled[2], sampled[3], strict=True))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_mlp_gives_a_token_the_same_bits_among_many(rng: np.random.Generator, threads: int) -> None:
    program = make_mlp(rng, threads)
    alone = {token: logprobs_after(program, [token]) for token in (3, 11)}
    assert alone[3] != alone[11]
    for m in ROWS:
        for token, expected in alone.items():
            assert logprobs_after(program, [*(each % VOCAB for each in range(m - 1)), token]) == expected
