"""Attention over pages: prefill, extend, decode, windows, softcap, and the same bits however a prompt is cut."""

from dataclasses import dataclass
from typing import Any

import kernel_ops
import kernel_reference as reference
import kv_reference
import numpy as np
import pytest

PAGE = reference.PAGE


@dataclass
class Sequence:
    """Bits of q, and k and v, [positions, heads, dim], of one sequence, and its page table."""

    q: reference.U16
    k: reference.F32
    v: reference.F32
    pages: list[int]

    def store(self, cache: kernel_ops.Cache) -> None:
        """Puts K and V where the cache keeps them."""
        k, v = kernel_ops.pad_columns(self.k), kernel_ops.pad_columns(self.v)
        for i, page in enumerate(self.pages):
            tokens = slice(i * PAGE, (i + 1) * PAGE)
            for head in range(k.shape[1]):
                cache.k[page, head] = kv_reference.half_page(cache.dtype, k[tokens, head], is_k=True)
                cache.v[page, head] = kv_reference.half_page(cache.dtype, v[tokens, head], is_k=False)

    def expected(self, start: int, kv_dtype: str, **options: Any) -> tuple[reference.F64, reference.F64]:
        q = reference.from_bf16(self.q[start:]).astype(np.float64)
        k, v = kv_reference.kept(kv_dtype, self.k), kv_reference.kept(kv_dtype, self.v)
        return reference.attention(q, k, v, start, **options)


def make_sequences(
    rng: np.random.Generator, lengths: list[int], heads: tuple[int, int, int], kv_dtype: str, values: int | None = None
) -> tuple[list[Sequence], kernel_ops.Cache]:
    """Sequences of the given lengths with pages dealt at random; heads = (q, kv, dim), `values` is the dim of V. The
    tokens' K and V differ in magnitude, as they do in models."""
    q_heads, kv_heads, dim = heads
    counts = [-(-length // PAGE) for length in lengths]
    pages = [int(p) for p in rng.permutation(sum(counts) + 3)]
    cache = kernel_ops.Cache(len(pages), kv_heads, dim, kv_dtype, value_dim=values)
    sequences = []
    for length, count in zip(lengths, counts, strict=True):
        own, pages = pages[:count], pages[count:]
        q = reference.to_bf16(rng.standard_normal((length, q_heads, dim)))
        k, v = (
            (rng.standard_normal((length, kv_heads, each)) * rng.uniform(0.1, 1.5, (length, kv_heads, 1))).astype("f4")
            for each in (dim, cache.value_dim)
        )
        v[rng.random(length) < 0.1] = 0  # such a token's weight counts too
        sequences.append(Sequence(q, k, v, own))
        sequences[-1].store(cache)
    return sequences, cache


def attend(
    isa: str, sequences: list[Sequence], cache: kernel_ops.Cache, starts: list[int], **options: Any
) -> list[reference.U16]:
    """Attention of each sequence's tokens from its start on, all in one batch."""
    counts = [len(s.q) - start for s, start in zip(sequences, starts, strict=True)]
    rows = np.cumsum([0, *counts])
    q = kernel_ops.pad_columns(np.concatenate([s.q[start:] for s, start in zip(sequences, starts, strict=True)]))
    plan = [(int(row), count, start) for row, count, start in zip(rows, counts, starts, strict=False)]
    tables = [s.pages for s in sequences]
    out = kernel_ops.attention(isa, q, sequences[0].q.shape[2], cache, plan, tables, **options)
    return np.split(out, rows[1:-1])


HEADS = [(1, 1, 32), (4, 2, 64), (9, 3, 64), (8, 1, 128), (3, 3, 80), (6, 2, 100), (2, 1, 256)]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("by_blocks", [False, True])
def test_prefill_extend_and_decode_share_a_batch(
    isa: str, kv_dtype: str, rng: np.random.Generator, heads: tuple[int, int, int], by_blocks: bool
) -> None:
    sequences, cache = make_sequences(rng, [1, 33, 70, 300, 257, 530], heads, kv_dtype)
    starts = [0, 0, 37, 299, 255, 505]
    scale = heads[2] ** -0.5
    for sequence, start, result in zip(
        sequences, starts, attend(isa, sequences, cache, starts, scale=scale, by_blocks=by_blocks), strict=True
    ):
        kernel_ops.assert_within(result, *sequence.expected(start, kv_dtype, scale=scale))


@pytest.mark.parametrize("window", [1, 5, 32, 100, 256, 300])
@pytest.mark.parametrize("by_blocks", [False, True])
def test_a_window_hides_what_is_further_back(
    isa: str, kv_dtype: str, rng: np.random.Generator, window: int, by_blocks: bool
) -> None:
    sequences, cache = make_sequences(rng, [40, 600, 600], (4, 2, 64), kv_dtype)
    starts = [0, 550, 0]
    results = attend(isa, sequences, cache, starts, scale=0.125, window=window, by_blocks=by_blocks)
    for sequence, start, result in zip(sequences, starts, results, strict=True):
        kernel_ops.assert_within(result, *sequence.expected(start, kv_dtype, scale=0.125, window=window))


@pytest.mark.parametrize("chunk", [1, 40, 256, 300])
@pytest.mark.parametrize("by_blocks", [False, True])
def test_a_token_sees_its_chunk_alone(
    isa: str, kv_dtype: str, rng: np.random.Generator, chunk: int, by_blocks: bool
) -> None:
    sequences, cache = make_sequences(rng, [40, 620, 620], (4, 2, 64), kv_dtype)
    starts, how = [0, 550, 0], {"scale": 0.125, "window": chunk, "aligned": True}
    results = attend(isa, sequences, cache, starts, by_blocks=by_blocks, **how)
    for sequence, start, result in zip(sequences, starts, results, strict=True):
        kernel_ops.assert_within(result, *sequence.expected(start, kv_dtype, **how))


@pytest.mark.parametrize("window", [0, 1, 64, 255, 300])
@pytest.mark.parametrize("by_blocks", [False, True])
def test_a_token_sees_both_sides(
    isa: str, kv_dtype: str, rng: np.random.Generator, window: int, by_blocks: bool
) -> None:
    sequences, cache = make_sequences(rng, [1, 40, 257, 620], (4, 2, 64), kv_dtype)
    starts, how = [0, 0, 0, 0], {"scale": 0.125, "window": window, "bidirectional": True}
    results = attend(isa, sequences, cache, starts, by_blocks=by_blocks, **how)
    for sequence, start, result in zip(sequences, starts, results, strict=True):
        kernel_ops.assert_within(result, *sequence.expected(start, kv_dtype, **how))


UNEQUAL = [((4, 2, 192), 128), ((6, 3, 80), 40), ((2, 1, 48), 100)]


@pytest.mark.parametrize(("heads", "values"), UNEQUAL)
@pytest.mark.parametrize("by_blocks", [False, True])
def test_values_may_be_narrower_or_wider_than_keys_and_are_scaled(
    isa: str, kv_dtype: str, rng: np.random.Generator, heads: tuple[int, int, int], values: int, by_blocks: bool
) -> None:
    sequences, cache = make_sequences(rng, [33, 300, 530], heads, kv_dtype, values)
    starts, scale = [0, 299, 505], heads[2] ** -0.5
    results = attend(isa, sequences, cache, starts, scale=scale, value_scale=0.707, by_blocks=by_blocks)
    for sequence, start, result in zip(sequences, starts, results, strict=True):
        value, bound = sequence.expected(start, kv_dtype, scale=scale)
        kernel_ops.assert_within(result, 0.707 * value, 0.707 * bound)


@pytest.mark.parametrize(("heads", "values"), UNEQUAL)
def test_a_token_with_such_values_has_the_same_bits_however_its_blocks_are_taken(
    isa: str, kv_dtype: str, rng: np.random.Generator, heads: tuple[int, int, int], values: int
) -> None:
    (sequence,), cache = make_sequences(rng, [700], heads, kv_dtype, values)
    options = {"scale": 0.1, "window": 300, "value_scale": 0.707}
    (whole,) = attend(isa, [sequence], cache, [0], **options)
    for start, rows_per_item in ((255, 32), (690, 5)):
        for by_blocks in (False, True):
            (tail,) = attend(
                isa, [sequence], cache, [start], by_blocks=by_blocks, rows_per_item=rows_per_item, **options
            )
            np.testing.assert_array_equal(tail, whole[start:])


# The heads of a model, and the query heads and KV heads of a rank: uneven numbers for each KV head, a part of one, the
# end of one and the start of the next, a KV head that no query head reads.
PARTS = [
    ((16, 2, 64), range(11), range(2)),
    ((24, 3, 64), range(5, 22), range(3)),
    ((10, 2, 128), range(6, 9), range(1, 2)),
    ((12, 3, 80), range(7, 9), range(1, 3)),
    ((12, 3, 32), range(5, 12), range(3)),
]


@pytest.mark.parametrize(("heads", "query", "kv"), PARTS)
@pytest.mark.parametrize("by_blocks", [False, True])
def test_a_rank_with_some_query_heads_of_its_kv_heads_has_the_bits_of_the_whole_model(
    isa: str,
    kv_dtype: str,
    rng: np.random.Generator,
    heads: tuple[int, int, int],
    query: range,
    kv: range,
    by_blocks: bool,
) -> None:
    all_heads, cache = make_sequences(rng, [1, 70, 300, 700], heads, kv_dtype)
    starts, sinks = [0, 37, 299, 300], rng.standard_normal(heads[0]).astype(np.float32)
    options = {"scale": 0.125, "window": 290, "by_blocks": by_blocks}
    whole = attend(isa, all_heads, cache, starts, sinks=sinks, **options)
    own = kernel_ops.Cache(len(cache.whole), len(kv), heads[2], kv_dtype)
    own.whole[:] = cache.whole[:, kv]
    sequences = [Sequence(each.q[:, query], each.k[:, kv], each.v[:, kv], each.pages) for each in all_heads]
    group = heads[0] // heads[1]
    others = (query.start - kv.start * group, kv.stop * group - query.stop)
    for rows_per_item in (7, 32, 128):
        results = attend(
            isa, sequences, own, starts, sinks=sinks[query], others=others, rows_per_item=rows_per_item, **options
        )
        for result, expected in zip(results, whole, strict=True):
            np.testing.assert_array_equal(result, expected[:, query])


@pytest.mark.parametrize("softcap", [5.0, 50.0])
def test_a_softcap_bounds_the_scores(isa: str, kv_dtype: str, rng: np.random.Generator, softcap: float) -> None:
    sequences, cache = make_sequences(rng, [90, 400], (4, 2, 64), kv_dtype)
    for result, sequence in zip(
        attend(isa, sequences, cache, [0, 380], scale=1.0, softcap=softcap), sequences, strict=True
    ):
        start = len(sequence.q) - len(result)
        kernel_ops.assert_within(result, *sequence.expected(start, kv_dtype, scale=1.0, softcap=softcap))


def test_a_token_has_the_same_bits_however_its_prompt_was_cut(
    isa: str, kv_dtype: str, rng: np.random.Generator
) -> None:
    (sequence, other), cache = make_sequences(rng, [600, 77], (9, 3, 64), kv_dtype)
    (whole,) = attend(isa, [sequence], cache, [0], scale=0.125)
    for start in (1, 31, 100, 255, 256, 257, 511, 599):
        for by_blocks in (False, True):
            (tail,) = attend(isa, [sequence], cache, [start], scale=0.125, by_blocks=by_blocks)
            np.testing.assert_array_equal(tail, whole[start:])
    for rows_per_item in (5, 100, 128):
        _, together = attend(isa, [other, sequence], cache, [3, 470], scale=0.125, rows_per_item=rows_per_item)
        np.testing.assert_array_equal(together, whole[470:])


@pytest.mark.parametrize("window", [0, 40])
def test_items_of_one_block_and_items_of_all_blocks_agree_to_the_last_bit(
    isa: str, kv_dtype: str, rng: np.random.Generator, window: int
) -> None:
    sequences, cache = make_sequences(rng, [1000], (8, 2, 128), kv_dtype)
    serial = attend(isa, sequences, cache, [900], scale=0.1, window=window)[0]
    merged = attend(isa, sequences, cache, [900], scale=0.1, window=window, by_blocks=True)[0]
    np.testing.assert_array_equal(merged, serial)
    of_many_rows = attend(isa, sequences, cache, [900], scale=0.1, window=window, rows_per_item=128)[0]
    np.testing.assert_array_equal(of_many_rows, serial)


@pytest.mark.parametrize("blocks", kernel_ops.BLOCK_CUTS)
@pytest.mark.parametrize("window", [0, 700])
def test_items_of_several_blocks_have_the_bits_of_items_of_all_blocks(
    isa: str, kv_dtype: str, rng: np.random.Generator, blocks: tuple[int, int], window: int
) -> None:
    """Rows of a prompt's items see different blocks."""
    sequences, cache = make_sequences(rng, [100, 1400], (4, 2, 64), kv_dtype)
    starts, options = [90, 1000], {"scale": 0.1, "window": window, "rows_per_item": 128}
    whole = attend(isa, sequences, cache, starts, **options)
    cut = attend(isa, sequences, cache, starts, by_blocks=True, blocks=blocks, **options)
    for result, expected in zip(cut, whole, strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("level", [-1e4, -100.0, 0.0, 30.0, 80.0])
@pytest.mark.parametrize("by_blocks", [False, True])
def test_a_sink_takes_its_share_of_the_softmax(
    isa: str, kv_dtype: str, rng: np.random.Generator, level: float, by_blocks: bool
) -> None:
    sequences, cache = make_sequences(rng, [40, 600], (6, 2, 64), kv_dtype)
    sinks = (level + rng.standard_normal(6)).astype(np.float32)
    starts = [0, 550]
    results = attend(isa, sequences, cache, starts, scale=0.125, window=300, sinks=sinks, by_blocks=by_blocks)
    for sequence, start, result in zip(sequences, starts, results, strict=True):
        kernel_ops.assert_within(result, *sequence.expected(start, kv_dtype, scale=0.125, window=300, sinks=sinks))


def test_a_sink_far_above_all_scores_leaves_nothing(isa: str, kv_dtype: str, rng: np.random.Generator) -> None:
    (sequence,), cache = make_sequences(rng, [20], (2, 1, 64), kv_dtype)
    (result,) = attend(isa, [sequence], cache, [0], scale=0.125, sinks=np.array([1e4, -1e4], np.float32))
    values = reference.from_bf16(result)
    assert np.abs(values[:, 0]).max() < 1e-30
    assert np.abs(values[:, 1]).max() > 0.1


@pytest.mark.parametrize("window", [0, 40])
def test_a_sink_is_added_once_however_the_blocks_are_taken(
    isa: str, kv_dtype: str, rng: np.random.Generator, window: int
) -> None:
    (sequence,), cache = make_sequences(rng, [1000], (8, 2, 64), kv_dtype)
    options = {"scale": 0.125, "window": window, "sinks": rng.standard_normal(8).astype(np.float32)}
    (whole,) = attend(isa, [sequence], cache, [0], **options)
    for by_blocks in (False, True):
        (tail,) = attend(isa, [sequence], cache, [900], by_blocks=by_blocks, rows_per_item=5, **options)
        np.testing.assert_array_equal(tail, whole[900:])


def test_large_scores_do_not_overflow(isa: str, kv_dtype: str, rng: np.random.Generator) -> None:
    (sequence,), cache = make_sequences(rng, [300], (2, 1, 64), kv_dtype)
    (result,) = attend(isa, [sequence], cache, [290], scale=1000.0)
    q = reference.from_bf16(sequence.q[290:]).astype(np.float64)
    k, v = (kv_reference.kept(kv_dtype, x[:, 0]) for x in (sequence.k, sequence.v))
    scores = np.einsum("qhd,kd->hqk", q, k)
    for token in range(10):
        for head in range(2):
            best = int(np.argmax(scores[head, token, : 291 + token]))
            bound = 0.0 if kv_dtype == "bf16" else reference.BF16 * np.abs(v[best])
            kernel_ops.assert_within(result[token, head], v[best], bound)


@pytest.mark.parametrize("by_blocks", [False, True])
def test_very_low_scores_survive_a_block_that_only_later_rows_see(
    isa: str, kv_dtype: str, rng: np.random.Generator, by_blocks: bool
) -> None:
    (sequence,), cache = make_sequences(rng, [270], (2, 1, 64), kv_dtype)
    sequence.k[:] = 2.0
    sequence.q[:] = reference.to_bf16(np.full(64, -2.0))
    sequence.store(cache)
    (result,) = attend(isa, [sequence], cache, [250], scale=1.0, by_blocks=by_blocks)
    kernel_ops.assert_within(result, *sequence.expected(250, kv_dtype, scale=1.0))
