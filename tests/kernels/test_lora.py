"""Products that adapters update: their values, and the same bits in any company."""

from __future__ import annotations

from dataclasses import dataclass

import kernel_ops
import kernel_reference as reference
import numpy as np
import operation_fields
import pytest
from kernel_reference import F32, F64, U16
from numaserve.kernels import AdapterWeights, PackedMatrix, Program, Team
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.layers.packed_rows import PackedRows, below, dealt
from numaserve.workers.program.caches import CacheKind, Heads
from numaserve.workers.program.native import make_program, native_rows
from numaserve.workers.program.outside import OutsideRows
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks, RankShape

HIDDEN, INNER, VOCAB, TOKENS, SLOTS = 96, 160, 64, 300, 4
# Adapters of a part of a tile, and of more tiles than a product takes at once.
RANKS = (6, 70)
# Rows of queries, keys and values: the first two meet within a panel, and the last one is padded.
PARTS, PLACES = (40, 24, 37), 3
SCALES = (0.5, 2.0, 1.0)


@dataclass(frozen=True)
class Adapted:
    """A matrix with adapters: the weights of each place and part, [rank, k] and [rows, rank]."""

    matrix: PackedMatrix
    values: F64
    pairs: list[list[tuple[U16, U16] | None]]

    def product(self, x: F64, place: int) -> F64:
        """The product with `x` [rows, k], of the adapter in a place, or with -1 of none."""
        out = x @ self.values.T
        first = 0
        for part, pair in enumerate(self.pairs[place] if place >= 0 else []):
            rows = self.heights[part]
            if pair is not None:
                a, b = (reference.from_bf16(each).astype(np.float64) for each in pair)
                out[:, first : first + rows] += SCALES[part] * (x @ a.T) @ b.T
            first += rows
        return out

    heights: tuple[int, ...] = PARTS


def adapted(
    rng: np.random.Generator, heights: tuple[int, ...], k: int, weights: str, largest: int, *, panels: bool
) -> Adapted:
    """A matrix of parts that lie below each other, or take turns in panels, with adapters of several ranks."""
    parts = [reference.to_bf16(k**-0.5 * rng.standard_normal((rows, k))) for rows in heights]
    group = 32 if weights == "int4" else 0
    joined = parts if panels else [np.concatenate(parts)]
    matrix = kernel_ops.packed(*joined, weights=weights, group=group)
    rows = [np.arange(each, dtype=np.int32) for each in heights]
    origin = dealt(rows) if panels else below(rows)
    blocks = origin.parts_in_panels(range(len(heights)))
    memory = AdapterWeights(PLACES, largest, len(heights), k, blocks)
    pairs = []
    for place in range(PLACES):
        # An adapter has nothing for a part, and each has a rank of its own.
        ranks = [0 if (place, part) == (1, 0) else largest - place - part for part in range(len(heights))]
        own = [
            (reference.to_bf16(rng.standard_normal((rank, k))), reference.to_bf16(rng.standard_normal((each, rank))))
            if rank
            else None
            for rank, each in zip(ranks, heights, strict=True)
        ]
        memory.set(place, ranks, list(SCALES[: len(heights)]), *_arranged(own, origin, blocks, (largest, k)))
        pairs.append(own)
    matrix.adapters = memory  # type: ignore[attr-defined]
    held = matrix.to_numpy().astype(np.float64)
    order = np.argsort(np.where(origin.parts >= 0, origin.parts * 10**6 + origin.rows, 10**9), kind="stable")
    return Adapted(matrix, held[order[: sum(heights)]] if panels else held, pairs, heights)


def _arranged(
    own: list[tuple[U16, U16] | None], origin: PackedRows, blocks: tuple[tuple[int, ...], ...], shape: tuple[int, int]
) -> tuple[U16, U16]:
    largest, k = shape
    a = np.zeros((len(own), largest, -(-k // 32) * 32), np.uint16)
    b = np.zeros((sum(map(len, blocks)), largest, 16), np.uint16)
    index = 0
    for panel, parts in enumerate(blocks):
        for part in parts:
            pair = own[part]
            for lane in range(16):
                if pair is not None and origin.parts[16 * panel + lane] == part:
                    b[index, : len(pair[0]), lane] = pair[1][origin.rows[16 * panel + lane]]
            index += 1
    for part, pair in enumerate(own):
        if pair is not None:
            a[part, : len(pair[0]), :k] = pair[0]
    return a, b


@dataclass(frozen=True)
class Model:
    """A Program of a product of three parts and of a gated MLP, and what it keeps of both."""

    program: Program
    outside: OutsideRows
    table: U16
    qkv: Adapted
    gate_up: Adapted
    down: Adapted

    def run(self, texts: list[tuple[int, list[int]]]) -> tuple[F32, F32]:
        """The results of both for some texts, each with the number of its adapter, in one step."""
        plan = []
        for slot, (adapter, tokens) in enumerate(texts):
            self.program.init_slot(slot, operation_fields.GREEDY | {"adapter": adapter})
            pages = -(-TOKENS // PAGE_SIZE)
            self.program.append_pages(slot, list(range(slot * pages, (slot + 1) * pages)))
            plan.append((slot, 0, len(tokens), 0, 0, 0))
        tokens = np.array([token for _, each in texts for token in each], np.int32)
        self.program.step(np.array(plan, np.int32), tokens, np.empty(0, np.int32))
        rows = len(tokens)
        return self.outside.kept("qkv")[:rows].copy(), self.outside.kept("mlp")[:rows].copy()


def make_model(rng: np.random.Generator, weights: str, threads: int, largest: int = RANKS[0]) -> Model:
    pages = -(-TOKENS // PAGE_SIZE)
    setup = ProgramSetup(
        RankShape(HIDDEN, [0, VOCAB], (CacheKind(Heads(1, 1, 32)),)),
        Capacity.of_program(TOKENS, 16, SLOTS, pages, SLOTS * pages),
        Ranks((threads,)),
    )
    table = reference.to_bf16(rng.standard_normal((VOCAB, HIDDEN)))
    qkv = adapted(rng, PARTS, HIDDEN, weights, largest, panels=False)
    gate_up = adapted(rng, (INNER, INNER), HIDDEN, weights, largest, panels=True)
    down = adapted(rng, (HIDDEN,), INNER, weights, largest, panels=False)
    b = ProgramBuilder(setup)
    x = b.rounded(b.embed(kernel_ops.packed(table), first_row=0))
    b.keep("qkv", b.linear(x, qkv.matrix))
    b.keep("mlp", b.gated_mlp(x, gate_up.matrix, down.matrix, "silu"))
    operations = b.fused()
    program = make_program(setup, operations, Team([-1] * threads))
    return Model(program, native_rows(program, operations), table, qkv, gate_up, down)


def _silu(x: F64) -> F64:
    return x / (1 + np.exp(-x))


# Products of few rows, of rows as rows, and of rows in tiles; texts of one adapter, of another one, and of none.
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
@pytest.mark.parametrize(("threads", "largest"), [(1, RANKS[0]), (3, RANKS[0]), (2, RANKS[1])])
def test_products_get_the_updates_of_each_rows_adapter(
    isa: str, rng: np.random.Generator, weights: str, threads: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMASERVE_ISA", isa)
    model = make_model(rng, weights, threads, largest)
    assert model.program.isa == isa
    for lengths in ((1, 1, 1, 1), (3, 9, 2, 17), (70, 33, 100, 97)):
        texts = [
            (adapter, rng.integers(0, VOCAB, length).tolist())
            for adapter, length in zip((2, 0, 1, 3), lengths, strict=True)
        ]
        qkv, mlp = model.run(texts)
        begin = 0
        for adapter, tokens in texts:
            rows = slice(begin, begin + len(tokens))
            begin = rows.stop
            # The same bits alone, and with tokens of its own only.
            alone = model.run([(adapter, tokens)])
            np.testing.assert_array_equal(alone[0], qkv[rows])
            np.testing.assert_array_equal(alone[1], mlp[rows])
            _check(model, weights, tokens, adapter - 1, (qkv[rows], mlp[rows]))


def _check(model: Model, weights: str, tokens: list[int], place: int, found: tuple[F32, F32]) -> None:
    x = reference.from_bf16(model.table[tokens]).astype(np.float64)
    expected = model.qkv.product(x, place)
    # Activations in int8 have an error of half a step; without them sums are of exact products.
    allowed = 1e-5 if weights == "bf16" else 2e-2
    scale = np.abs(expected).max()
    assert np.abs(found[0] - expected).max() <= allowed * scale
    both = model.gate_up.product(x, place)
    hidden = reference.rounded(_silu(both[:, :INNER]) * both[:, INNER:])
    mlp = model.down.product(hidden, place)
    # A rounded value of the hidden vector may be another one of bf16: 2⁻⁸ of it.
    allowed = 2**-8 if weights == "bf16" else 4e-2
    assert np.abs(found[1] - mlp).max() <= allowed * np.abs(mlp).max()


def test_steps_without_adapters_have_the_bits_of_a_model_without_adapters(rng: np.random.Generator) -> None:
    model = make_model(rng, "bf16", 2)
    state = rng.bit_generator.state
    tokens = rng.integers(0, VOCAB, 50).tolist()
    rng.bit_generator.state = state
    with_adapters = model.run([(0, tokens)])
    for each in (model.qkv, model.gate_up, model.down):
        for place in range(PLACES):
            each.matrix.adapters.clear(place)  # type: ignore[attr-defined]
    for adapter in (0, 1):
        for one, other in zip(model.run([(adapter, tokens)]), with_adapters, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_number_without_a_place_is_refused(rng: np.random.Generator) -> None:
    model = make_model(rng, "bf16", 1)
    with pytest.raises(ValueError, match="slot 0 of the step names an adapter that has no place"):
        model.run([(PLACES + 1, [1])])
