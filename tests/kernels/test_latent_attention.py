"""Attention over a latent cache: prefill, extend and decode in a batch, and the same bits however a prompt is cut."""

from dataclasses import dataclass

import kernel_ops
import kernel_reference as reference
import latent_ops
import numpy as np
import pytest
from numpy.typing import NDArray

PAGE = reference.PAGE
DIMS = [(1, 512, 64), (3, 64, 32), (16, 512, 64), (5, 256, 32), (37, 32, 32)]  # heads, latent, rotated
SCALE = 0.07


@dataclass
class Sequence:
    """Bits of absorbed queries [positions, heads, dim] and of tokens [positions, dim], and its page table."""

    q: reference.U16
    tokens: reference.U16
    pages: list[int]

    def expected(self, start: int, latent: int, scale: float = SCALE) -> tuple[reference.F64, reference.F64]:
        q = reference.from_bf16(self.q[start:]).astype(np.float64)
        k = reference.from_bf16(self.tokens).astype(np.float64)[:, None]
        return reference.attention(q, k, k[..., :latent], start, scale=scale)


def make_sequences(
    rng: np.random.Generator, lengths: list[int], dims: tuple[int, int, int]
) -> tuple[list[Sequence], NDArray[np.uint8]]:
    """Sequences of the given lengths with pages dealt at random."""
    heads, latent, rope = dims
    counts = [-(-length // PAGE) for length in lengths]
    pages = [int(p) for p in rng.permutation(sum(counts) + 3)]
    cache = latent_ops.make_cache(len(pages), latent + rope)
    sequences = []
    for length, count in zip(lengths, counts, strict=True):
        own, pages = pages[:count], pages[count:]
        q = reference.to_bf16(rng.standard_normal((length, heads, latent + rope)))
        tokens = rng.standard_normal((length, latent + rope)) * rng.uniform(0.1, 1.5, (length, 1))
        sequences.append(Sequence(q, reference.to_bf16(tokens), own))
        latent_ops.put(cache, sequences[-1].tokens, own)
    return sequences, cache


def attend(
    isa: str,
    sequences: list[Sequence],
    cache: NDArray[np.uint8],
    starts: list[int],
    latent: int,
    *,
    scale: float = SCALE,
    by_blocks: bool = False,
    blocks: tuple[int, int] = (0, 1),
    rows_per_item: int = 256,
) -> list[reference.U16]:
    """Attention of each sequence's tokens from its start on, all in one batch."""
    counts = [len(s.q) - start for s, start in zip(sequences, starts, strict=True)]
    rows = np.cumsum([0, *counts])
    q = np.concatenate([s.q[start:] for s, start in zip(sequences, starts, strict=True)])
    plan = [(int(row), count, start) for row, count, start in zip(rows, counts, starts, strict=False)]
    tables = [s.pages for s in sequences]
    out = latent_ops.attention(
        isa,
        q,
        latent,
        cache,
        plan,
        tables,
        scale=scale,
        by_blocks=by_blocks,
        blocks=blocks,
        rows_per_item=rows_per_item,
    )
    return np.split(out, rows[1:-1])


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize(("by_blocks", "rows_per_item"), [(False, 256), (False, 40), (True, 256), (True, 17)])
def test_prefill_extend_and_decode_share_a_batch(
    isa: str, rng: np.random.Generator, dims: tuple[int, int, int], by_blocks: bool, rows_per_item: int
) -> None:
    sequences, cache = make_sequences(rng, [1, 33, 70, 300, 257, 530], dims)
    starts = [0, 0, 60, 299, 255, 520]
    results = attend(isa, sequences, cache, starts, dims[1], by_blocks=by_blocks, rows_per_item=rows_per_item)
    for sequence, start, result in zip(sequences, starts, results, strict=True):
        kernel_ops.assert_within(result, *sequence.expected(start, dims[1]))


@pytest.mark.parametrize("dims", [(1, 64, 32), (3, 128, 64), (16, 32, 32)])
def test_a_token_has_the_same_bits_however_its_prompt_was_cut(
    isa: str, rng: np.random.Generator, dims: tuple[int, int, int]
) -> None:
    (sequence, other), cache = make_sequences(rng, [600, 77], dims)
    latent = dims[1]
    (whole,) = attend(isa, [sequence], cache, [0], latent)
    for start in (1, 31, 100, 255, 256, 257, 511, 599):
        for by_blocks, rows_per_item in ((False, 256), (True, 256), (True, 32), (False, 5)):
            (tail,) = attend(isa, [sequence], cache, [start], latent, by_blocks=by_blocks, rows_per_item=rows_per_item)
            np.testing.assert_array_equal(tail, whole[start:])
    _, together = attend(isa, [other, sequence], cache, [3, 470], latent, rows_per_item=50)
    np.testing.assert_array_equal(together, whole[470:])


@pytest.mark.parametrize("blocks", kernel_ops.BLOCK_CUTS)
@pytest.mark.parametrize("rows_per_item", [40, 256])
def test_items_of_several_blocks_have_the_bits_of_items_of_all_blocks(
    isa: str, rng: np.random.Generator, blocks: tuple[int, int], rows_per_item: int
) -> None:
    sequences, cache = make_sequences(rng, [100, 1400], (11, 64, 32))
    starts = [90, 1380]
    whole = attend(isa, sequences, cache, starts, 64)
    cut = attend(isa, sequences, cache, starts, 64, by_blocks=True, blocks=blocks, rows_per_item=rows_per_item)
    for result, expected in zip(cut, whole, strict=True):
        np.testing.assert_array_equal(result, expected)


def test_large_scores_do_not_overflow(isa: str, rng: np.random.Generator) -> None:
    (sequence,), cache = make_sequences(rng, [300], (2, 64, 32))
    (result,) = attend(isa, [sequence], cache, [290], 64, scale=1000.0)
    q, k = (reference.from_bf16(bits).astype(np.float64) for bits in (sequence.q[290:], sequence.tokens))
    scores = np.einsum("qhd,kd->hqk", q, k)
    for token in range(10):
        for head in range(2):
            best = int(np.argmax(scores[head, token, : 291 + token]))
            kernel_ops.assert_within(result[token, head], k[best, :64], 0.0)


@pytest.mark.parametrize("by_blocks", [False, True])
def test_very_low_scores_survive_a_block_that_only_later_rows_see(
    isa: str, rng: np.random.Generator, by_blocks: bool
) -> None:
    (sequence,), cache = make_sequences(rng, [270], (2, 64, 32))
    sequence.tokens[:] = reference.to_bf16(np.full(96, 2.0))
    sequence.q[:] = reference.to_bf16(np.full(96, -2.0))
    latent_ops.put(cache, sequence.tokens, sequence.pages)
    (result,) = attend(isa, [sequence], cache, [200], 64, scale=1.0, by_blocks=by_blocks)
    kernel_ops.assert_within(result, *sequence.expected(200, 64, 1.0))
