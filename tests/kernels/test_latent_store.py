"""Queries taken apart and rotated, latents normalised, and the one write into the latent cache."""

import itertools

import kernel_ops
import kernel_reference as reference
import latent_ops
import numpy as np
import pytest
from latent_ops import Dims

PAGE = reference.PAGE
DIMS = [Dims(1, 32, 32, 32), Dims(3, 64, 32, 128), Dims(16, 128, 64, 512), Dims(5, 96, 64, 256)]
EPS = 1e-6


def _tables(positions: int, rope: int) -> tuple[reference.F32, reference.F32]:
    angles = np.outer(np.arange(positions), 10000.0 ** (-np.arange(rope // 2) / (rope / 2)))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _runs(row: int, start: int, count: int, pages: list[int]) -> list[tuple[int, int, int, int]]:
    """The page runs of `count` tokens from position `start`, the first of them in batch row `row`."""
    cuts = [start, *range((start // PAGE + 1) * PAGE, start + count, PAGE), start + count]
    return [(row + a - start, b - a, a, pages[a // PAGE]) for a, b in itertools.pairwise(cuts)]


def _inputs(rng: np.random.Generator, tokens: int, dims: Dims) -> tuple[reference.F32, reference.F32, reference.F32]:
    q = rng.standard_normal((tokens, dims.heads * (dims.nope + dims.rope))).astype(np.float32)
    kv = rng.standard_normal((tokens, dims.query)).astype(np.float32)
    return q, kv * np.float32(3), rng.standard_normal(dims.latent).astype(np.float32)


def _assert_rotated(found: reference.U16, x: reference.F32, cos: reference.F32, sin: reference.F32) -> None:
    """x [tokens, heads, rope]; cos and sin [tokens, half]. A rotation has two products and a sum, then bf16."""
    value = reference.rope(x.astype(np.float64), cos, sin)
    reach = np.abs(np.concatenate([x[..., cos.shape[-1] :], x[..., : cos.shape[-1]]], axis=-1)) + np.abs(x)
    kernel_ops.assert_within(found, value, reference.BF16 * np.abs(value) + 4 * reference.FP32 * reach)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("threads", [1, 4])
def test_queries_are_taken_apart_and_latents_are_stored(
    isa: str, rng: np.random.Generator, dims: Dims, threads: int
) -> None:
    q, kv, norm = _inputs(rng, 75, dims)
    tables = _tables(200, dims.rope)
    cache = latent_ops.make_cache(8, dims.query)
    first, second = [6, 2], [1, 7, 0]
    runs = _runs(0, 0, 40, first) + _runs(40, 64, 29, second) + _runs(69, 32, 6, second)
    nope, rotated = latent_ops.store(isa, q, kv, dims, cache, runs, tables, norm, EPS, threads)

    positions = np.array([*range(40), *range(64, 93), *range(32, 38)])
    cos, sin = (table[positions] for table in tables)
    heads = q.reshape(75, dims.heads, -1)
    np.testing.assert_array_equal(nope, reference.to_bf16(heads[..., : dims.nope]))
    _assert_rotated(rotated, heads[..., dims.nope :], cos, sin)

    own, other = latent_ops.take(cache, first), latent_ops.take(cache, second)
    stored = np.concatenate([own[:40], other[64:93], other[32:38]])
    value, error = reference.rms_norm(kv[:, : dims.latent], norm, EPS)
    kernel_ops.assert_within(stored[:, : dims.latent], value, error + reference.BF16 * (np.abs(value) + error))
    _assert_rotated(stored[:, None, dims.latent :], kv[:, None, dims.latent :], cos, sin)


def test_the_first_token_of_a_page_clears_what_an_earlier_sequence_left(isa: str, rng: np.random.Generator) -> None:
    dims = Dims(2, 32, 32, 64)
    cache = latent_ops.make_cache(2, dims.query)
    q, kv, norm = _inputs(rng, 1, dims)
    latent_ops.store(isa, q, kv, dims, cache, _runs(0, 0, 1, [1]), _tables(64, 32), norm, EPS, threads=3)
    tokens = latent_ops.take(cache, [1])
    assert tokens[0].any()
    assert not tokens[1:].any()
    assert (cache[0].view(np.uint16) == kernel_ops.GARBAGE).all()


def test_a_later_token_of_a_page_leaves_the_earlier_ones_alone(isa: str, rng: np.random.Generator) -> None:
    dims = Dims(3, 32, 32, 64)
    q, kv, norm = _inputs(rng, 50, dims)
    tables = _tables(64, 32)
    whole, pieces = (latent_ops.make_cache(2, dims.query) for _ in range(2))
    expected = latent_ops.store(isa, q, kv, dims, whole, _runs(0, 0, 50, [0, 1]), tables, norm, EPS, threads=3)
    for start, end in ((0, 7), (7, 8), (8, 32), (32, 33), (33, 50)):
        runs = _runs(0, start, end - start, [0, 1])
        found = latent_ops.store(isa, q[start:end], kv[start:end], dims, pieces, runs, tables, norm, EPS)
        for some, every in zip(found, expected, strict=True):
            np.testing.assert_array_equal(some, every[start:end])
    np.testing.assert_array_equal(pieces, whole)


def test_queries_are_scaled_by_their_position_and_latents_are_not(isa: str, rng: np.random.Generator) -> None:
    dims, runs, tables = Dims(3, 64, 32, 128), _runs(0, 5, 40, [0, 1]), _tables(64, 32)
    q, kv, norm = _inputs(rng, 40, dims)
    scale = (1 + np.arange(64) // 8 * 0.25).astype(np.float32)
    caches = [latent_ops.make_cache(2, dims.query) for _ in range(2)]
    plain, scaled = (
        latent_ops.store(isa, q, kv, dims, cache, runs, tables, norm, EPS, 2, q_scale=factors)
        for cache, factors in zip(caches, (None, scale), strict=True)
    )
    for before, after in zip(plain, scaled, strict=True):
        expected = reference.from_bf16(before) * scale[5:45, None, None]
        kernel_ops.assert_within(after, expected, 2 * reference.BF16 * np.abs(expected))
    assert caches[0].tobytes() == caches[1].tobytes()
