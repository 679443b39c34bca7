"""Per-head norm, rotation and the one write into the cache."""

import itertools

import kernel_ops
import kernel_reference as reference
import kv_reference
import numpy as np
import pytest

PAGE = reference.PAGE


def _tables(positions: int, rot_dim: int) -> tuple[reference.F32, reference.F32]:
    angles = np.outer(np.arange(positions), 10000.0 ** (-np.arange(rot_dim // 2) / (rot_dim / 2)))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _runs(row: int, start: int, count: int, pages: list[int]) -> list[tuple[int, int, int, int]]:
    """The page runs of `count` tokens from position `start`, the first of them in batch row `row`."""
    cuts = [start, *range((start // PAGE + 1) * PAGE, start + count, PAGE), start + count]
    return [(row + a - start, b - a, a, pages[a // PAGE]) for a, b in itertools.pairwise(cuts)]


def _heads(x: np.ndarray, heads: tuple[int, int, int]) -> list[reference.F64]:
    """The q, k and v of rows x [tokens, (q + 2 kv) * dim], each [tokens, heads, dim]."""
    q_heads, kv_heads, dim = heads
    split = x.astype(np.float64).reshape(len(x), -1, dim)
    return [split[:, :q_heads], split[:, q_heads : q_heads + kv_heads], split[:, q_heads + kv_heads :]]


def _stored(cache: kernel_ops.Cache, pages: list[int], first: int, count: int) -> tuple[reference.F64, reference.F64]:
    """K and V [count, kv_heads, padded dim] of the positions from `first` on."""

    def values(half: kv_reference.U8, *, is_k: bool) -> reference.F64:
        heads = (kv_reference.read_half_page(cache.dtype, head, is_k=is_k) for page in pages for head in half[page])
        return (
            np.stack(list(heads))
            .reshape(len(pages), half.shape[1], PAGE, -1)
            .swapaxes(1, 2)
            .reshape(len(pages) * PAGE, half.shape[1], -1)
        )

    k, v = values(cache.k, is_k=True), values(cache.v, is_k=False)
    return k[first : first + count], v[first : first + count]


@pytest.mark.parametrize(
    ("heads", "rot_dim"), [((1, 1, 32), 32), ((9, 3, 64), 64), ((4, 2, 80), 32), ((3, 1, 100), 50), ((2, 2, 256), 256)]
)
@pytest.mark.parametrize("norm", ["none", "before", "after", "after without weights"])
@pytest.mark.parametrize("threads", [1, 4])
def test_q_and_k_are_rotated_and_v_is_kept(
    isa: str,
    kv_dtype: str,
    rng: np.random.Generator,
    heads: tuple[int, int, int],
    rot_dim: int,
    norm: str,
    threads: int,
) -> None:
    dim = heads[2]
    qkv = rng.standard_normal((75, (heads[0] + 2 * heads[1]) * dim)).astype(np.float32)
    names = ("q_norm", "k_norm") if norm in ("before", "after") else ()
    norm, ones = norm.split(maxsplit=1)[0], np.ones(dim, np.float32)
    norms = {name: rng.standard_normal(dim).astype(np.float32) for name in names}
    cos, sin = _tables(200, rot_dim)
    cache = kernel_ops.Cache(8, heads[1], dim, kv_dtype)
    first, second = [6, 2], [1, 7, 0]
    runs = _runs(0, 0, 40, first) + _runs(40, 64, 29, second) + _runs(69, 32, 6, second)
    q = kernel_ops.rope_store(isa, qkv, heads, cache, runs, (cos, sin), norm=norm, eps=1e-6, threads=threads, **norms)

    positions = np.array([*range(40), *range(64, 93), *range(32, 38)])
    raw_q, raw_k, raw_v = _heads(qkv, heads)
    where = ((first, 0, 40), (second, 64, 29), (second, 32, 6))
    stored_k, stored_v = (np.concatenate(part) for part in zip(*(_stored(cache, *at) for at in where), strict=True))
    rotated = (
        (raw_q, norms.get("q_norm", ones), reference.from_bf16(q), "bf16"),
        (raw_k, norms.get("k_norm", ones), stored_k, kv_dtype),
    )
    for raw, weight, found, dtype in rotated:
        x, error = (raw, np.zeros_like(raw)) if norm != "before" else reference.rms_norm(raw, weight, 1e-6)
        value = reference.rope(x, cos[positions], sin[positions])
        # A rotation adds two products: errors of its two inputs add up, and so do three roundings of fp32.
        reach = np.abs(x) * reference.FP32 * 3 + error
        bound = reference.rope(reach, np.abs(cos[positions]), -np.abs(sin[positions]))
        bound[..., rot_dim // 2 : rot_dim] += 2 * reach[..., : rot_dim // 2] * np.abs(sin[positions])[:, None]
        if norm == "after":
            # The errors of a head's values, and of their norm, which is off by no more than these are in all.
            size = np.linalg.norm(value, axis=-1, keepdims=True)
            share = np.linalg.norm(bound, axis=-1, keepdims=True) / size
            factor = np.abs(weight) * np.sqrt(dim) / size
            value, error = reference.rms_norm(value, weight, 1e-6)
            bound = bound * factor + np.abs(value) * share + error
        kernel_ops.assert_within(found[..., :dim], value, bound + kv_reference.rounding(dtype, value, bound))
        assert not found[..., dim:].any()
    np.testing.assert_array_equal(stored_v[..., :dim], kv_reference.kept(kv_dtype, raw_v.astype(np.float32)))
    assert not stored_v[..., dim:].any()


@pytest.mark.parametrize("dim", [32, 64, 80, 100, 128, 256])
def test_every_set_stores_the_same_bytes(isa: str, kv_dtype: str, rng: np.random.Generator, dim: int) -> None:
    """Those of the reference, also of tokens of zeros, of very small and very large values, and of ties. Tokens of
    ties have a power of two for a scale: their ratios are exact."""
    tokens, kv_heads = 32 + 21, 2
    kv = rng.standard_normal((tokens, 2 * kv_heads, dim)).astype(np.float32)
    kv *= np.float32(10.0) ** rng.integers(-12, 13, (tokens, 1, 1), dtype=np.int32)
    kv[3], kv[4], kv[40] = 0, kv[4] * np.float32(1e-30), kv[40] * np.float32(1e20)
    for token in (7, 45):
        kv[token] = rng.integers(-254, 255, (2 * kv_heads, dim)) / 2  # for int8
        kv[token, :, 0] = 127
    for token in (9, 50):
        kv[token] = rng.integers(-1023, 1024, (2 * kv_heads, dim)) * 2.0 ** rng.integers(-14, -1, dim)  # for e4m3
        kv[token, :, 0] = 448
    qkv = np.concatenate([rng.standard_normal((tokens, dim)).astype(np.float32), kv.reshape(tokens, -1)], axis=1)
    cache = kernel_ops.Cache(3, kv_heads, dim, kv_dtype)
    no_rotation = np.ones((64, 1), np.float32), np.zeros((64, 1), np.float32)
    kernel_ops.rope_store(isa, qkv, (1, kv_heads, dim), cache, _runs(0, 0, tokens, [2, 0]), no_rotation)
    wide = kernel_ops.pad_columns(kv)
    for page, part in ((2, wide[:32]), (0, wide[32:])):
        for head in range(kv_heads):
            for half, values, is_k in ((cache.k, part[:, head], True), (cache.v, part[:, kv_heads + head], False)):
                expected = kv_reference.half_page(kv_dtype, values, is_k=is_k)
                np.testing.assert_array_equal(half[page, head], expected)


def test_the_first_token_of_a_page_clears_what_an_earlier_sequence_left(
    isa: str, kv_dtype: str, rng: np.random.Generator
) -> None:
    heads = (2, 1, 64)
    cache = kernel_ops.Cache(2, 1, 64, kv_dtype)
    qkv = rng.standard_normal((1, 4 * 64)).astype(np.float32)
    kernel_ops.rope_store(isa, qkv, heads, cache, _runs(0, 0, 1, [1]), _tables(64, 64))
    k, v = _stored(cache, [1], 0, PAGE)
    assert not k[1:].any()
    assert not v[1:].any()
    assert (cache.k[0].view(np.uint16) == kernel_ops.GARBAGE).all()


def test_a_later_token_of_a_page_leaves_the_earlier_ones_alone(
    isa: str, kv_dtype: str, rng: np.random.Generator
) -> None:
    heads = (2, 1, 64)
    qkv = rng.standard_normal((50, 4 * 64)).astype(np.float32)
    whole, pieces = (kernel_ops.Cache(2, 1, 64, kv_dtype) for _ in range(2))
    q = kernel_ops.rope_store(isa, qkv, heads, whole, _runs(0, 0, 50, [0, 1]), _tables(64, 64), threads=3)
    for start, end in ((0, 7), (7, 8), (8, 32), (32, 33), (33, 50)):
        part = kernel_ops.rope_store(
            isa, qkv[start:end], heads, pieces, _runs(0, start, end - start, [0, 1]), _tables(64, 64)
        )
        np.testing.assert_array_equal(part, q[start:end])
    np.testing.assert_array_equal(pieces.k, whole.k)
    np.testing.assert_array_equal(pieces.v, whole.v)


def test_queries_are_scaled_by_their_position_and_keys_are_not(isa: str, rng: np.random.Generator) -> None:
    heads, tables = (4, 2, 80), _tables(64, 64)
    qkv = rng.standard_normal((40, 8 * 80)).astype(np.float32)
    runs, scale = _runs(0, 5, 40, [0, 1]), (1 + np.arange(64) // 8 * 0.25).astype(np.float32)
    caches = [kernel_ops.Cache(2, 2, 80) for _ in range(2)]
    plain, scaled = (
        reference.from_bf16(kernel_ops.rope_store(isa, qkv, heads, cache, runs, tables, q_scale=factors, threads=2))
        for cache, factors in zip(caches, (None, scale), strict=True)
    )
    expected = plain * scale[5:45, None, None]
    kernel_ops.assert_within(scaled, expected, 2 * reference.BF16 * np.abs(expected))
    assert caches[0].k.tobytes() == caches[1].k.tobytes()
    assert caches[0].v.tobytes() == caches[1].v.tobytes()


@pytest.mark.parametrize(("heads", "rot_dim"), [((4, 2, 80), 32), ((2, 1, 512), 512)])
@pytest.mark.parametrize("threads", [1, 3])
def test_values_may_be_keys_before_their_norm(
    isa: str, kv_dtype: str, rng: np.random.Generator, heads: tuple[int, int, int], rot_dim: int, threads: int
) -> None:
    q_heads, kv_heads, dim = heads
    qk = rng.standard_normal((40, (q_heads + kv_heads) * dim)).astype(np.float32)
    qkv = np.hstack([qk, qk[:, q_heads * dim :]])
    arguments = {"norm": "before", "eps": 1e-6, "norm_values": True, "threads": threads}
    caches = [kernel_ops.Cache(2, kv_heads, dim, kv_dtype) for _ in range(2)]
    runs, tables = _runs(0, 0, 40, [1, 0]), _tables(64, rot_dim)
    q = kernel_ops.rope_store(isa, qkv, heads, caches[0], runs, tables, **arguments)
    same = kernel_ops.rope_store(isa, qk, heads, caches[1], runs, tables, source="keys", **arguments)
    np.testing.assert_array_equal(same, q)
    for half in ("k", "v"):
        np.testing.assert_array_equal(getattr(caches[1], half), getattr(caches[0], half))


@pytest.mark.parametrize(("heads", "values"), [((4, 2, 96), 64), ((3, 1, 192), 128), ((2, 2, 40), 56)])
@pytest.mark.parametrize("threads", [1, 3])
def test_values_may_have_other_dimensions_than_keys(
    isa: str, kv_dtype: str, rng: np.random.Generator, heads: tuple[int, int, int], values: int, threads: int
) -> None:
    q_heads, kv_heads, dim = heads
    qkv = rng.standard_normal((40, (q_heads + 2 * kv_heads) * dim)).astype(np.float32)
    v = rng.standard_normal((40, kv_heads, values)).astype(np.float32)
    unequal = np.hstack([qkv[:, : (q_heads + kv_heads) * dim], v.reshape(40, -1)])
    runs, tables = _runs(0, 0, 40, [1, 0]), _tables(64, 32)
    equal = kernel_ops.Cache(2, kv_heads, dim, kv_dtype)
    cache = kernel_ops.Cache(2, kv_heads, dim, kv_dtype, value_dim=values)
    expected = kernel_ops.rope_store(isa, qkv, heads, equal, runs, tables)
    q = kernel_ops.rope_store(isa, unequal, heads, cache, runs, tables, threads=threads)
    np.testing.assert_array_equal(q, expected)
    np.testing.assert_array_equal(cache.k, equal.k)
    for page, part in ((1, slice(0, 32)), (0, slice(32, 40))):
        for head in range(kv_heads):
            stored = kv_reference.half_page(kv_dtype, kernel_ops.pad_columns(v[part, head]), is_k=False)
            np.testing.assert_array_equal(cache.v[page, head], stored)


def test_values_are_normalised_without_a_weight(isa: str, rng: np.random.Generator) -> None:
    heads = (1, 2, 48)
    qkv = rng.standard_normal((20, 5 * 48)).astype(np.float32) * 7
    cache = kernel_ops.Cache(1, 2, 48)
    kernel_ops.rope_store(isa, qkv, heads, cache, _runs(0, 0, 20, [0]), _tables(32, 48), eps=1e-6, norm_values=True)
    value, bound = reference.rms_norm(_heads(qkv, heads)[2], np.ones(48, np.float32), 1e-6)
    found = _stored(cache, [0], 0, 20)[1][..., :48]
    kernel_ops.assert_within(found, value, bound + kv_reference.rounding("bf16", value, bound))


def test_a_layer_that_reads_another_cache_rotates_queries_only(isa: str, rng: np.random.Generator) -> None:
    heads, weight = (3, 1, 64), rng.standard_normal(64).astype(np.float32)
    qkv, cache = rng.standard_normal((33, 5 * 64)).astype(np.float32), kernel_ops.Cache(2, 1, 64)
    arguments = {"norm": "before", "q_norm": weight, "eps": 1e-6, "threads": 2}
    runs, tables = _runs(0, 0, 33, [1, 0]), _tables(64, 64)
    expected = kernel_ops.rope_store(isa, qkv, heads, kernel_ops.Cache(2, 1, 64), runs, tables, **arguments)
    queries = np.ascontiguousarray(qkv[:, : 3 * 64])
    q = kernel_ops.rope_store(isa, queries, heads, cache, runs, tables, source="cached", **arguments)
    np.testing.assert_array_equal(q, expected)
    for half in (cache.k, cache.v):
        assert (half.view(np.uint16) == kernel_ops.GARBAGE).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_pairs_that_lie_further_apart_are_rotated_as_if_others_turned_by_nothing(
    isa: str, kv_dtype: str, rng: np.random.Generator, threads: int
) -> None:
    heads, pairs, half = (3, 2, 96), 10, 48
    qkv = rng.standard_normal((40, 7 * 96)).astype(np.float32)
    cos, sin = _tables(64, 2 * pairs)
    all_cos, all_sin = np.ones((64, half), np.float32), np.zeros((64, half), np.float32)
    all_cos[:, :pairs], all_sin[:, :pairs] = cos, sin
    caches = [kernel_ops.Cache(2, 2, 96, kv_dtype) for _ in range(2)]
    runs = _runs(0, 0, 40, [1, 0])
    q = kernel_ops.rope_store(isa, qkv, heads, caches[0], runs, (all_cos, all_sin), threads=threads)
    same = kernel_ops.rope_store(isa, qkv, heads, caches[1], runs, (cos, sin), distance=half, threads=threads)
    np.testing.assert_array_equal(same, q)
    for part in ("k", "v"):
        np.testing.assert_array_equal(getattr(caches[1], part), getattr(caches[0], part))
