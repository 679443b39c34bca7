"""Cases of operations on the KV cache: the store of keys and values, and attention to them."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import kernel_reference as reference
import kv_reference
import numpy as np
from kernel_ops import packed
from kernel_reference import F32, F64, FP32, Bounded, from_bf16, in_bf16, to_bf16
from numaserve.kernels import RopeTable, Vector
from numaserve.workers.interface.settings import KvCacheDtype
from numaserve.workers.program.buffers import Buffer, Operand, Tensor
from numaserve.workers.program.caches import CacheKind, Heads
from numaserve.workers.program.ops.latent import LatentStore
from numaserve.workers.program.recording.builder import ProgramBuilder
from one_operation import LAYER, Case, normal, table

Rng = np.random.Generator
EPS = 1e-6
LENGTHS = (40, 6, 29)  # of the sequences that are stored
POSITIONS = np.concatenate([np.arange(length) for length in LENGTHS])
ROWS = len(POSITIONS)


@dataclass(frozen=True)
class Turns:
    """Angles of `pairs` of dimensions, which are `distance` apart; `still`: zeros. `scaled`: of queries."""

    pairs: int
    distance: int = 0
    scaled: bool = False
    still: bool = False

    def __str__(self) -> str:
        return f"{self.pairs} pairs {self.distance}{' scaled' * self.scaled}{' still' * self.still}"

    def table(self) -> RopeTable:
        return RopeTable(*self._angles(), self._scale() if self.scaled else None, self.distance)

    def turned(self, x: F64, off: F64) -> Bounded:
        """Heads [tokens, heads, dim], which are off by `off`. Errors of both inputs of a sum of two products add up,
        and so do three roundings of fp32."""
        distance, off = self.distance or self.pairs, off + (0 if self.still else 3 * FP32) * np.abs(x)
        low, high = slice(self.pairs), slice(distance, distance + self.pairs)
        (c, s), value, bound = (each[POSITIONS, None] for each in self._angles()), x.copy(), off.copy()
        value[..., low] = x[..., low] * c - x[..., high] * s
        value[..., high] = x[..., high] * c + x[..., low] * s
        bound[..., low] = off[..., low] * np.abs(c) + off[..., high] * np.abs(s)
        bound[..., high] = off[..., high] * np.abs(c) + off[..., low] * np.abs(s)
        return value, bound

    def queries(self, of: Bounded) -> Bounded:
        """Queries in bf16, scaled by the factors of their positions."""
        factors = self._scale()[POSITIONS, None, None].astype(np.float64)
        return in_bf16((of[0] * factors, (of[1] + (2 * FP32 if self.scaled else 0) * np.abs(of[0])) * factors))

    def _angles(self) -> tuple[F32, F32]:
        turns = np.outer(np.arange(200), 10000.0 ** (-np.arange(self.pairs) / self.pairs)) * (not self.still)
        return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)

    def _scale(self) -> F32:
        return (1 + np.arange(200) // 8 * (0.25 if self.scaled else 0)).astype(np.float32)


def flat(of: Bounded, pad: int = 1) -> Bounded:
    """Heads side by side, each padded with zeros to a multiple of `pad` columns."""
    value, bound = (
        np.pad(each, [(0, 0), (0, 0), (0, -each.shape[-1] % pad)]).reshape(len(each), -1)
        for each in np.broadcast_arrays(*of)
    )
    return value, bound


def beside(first: Bounded, second: Bounded) -> Bounded:
    """Dimensions of heads, and then others."""
    value, bound = (np.concatenate(both, axis=2) for both in zip(first, second, strict=True))
    return value, bound


def normed(x: F64, norm: str, weight: F32, turns: Turns) -> Bounded:
    """Heads of queries or keys, normed and turned in one order or the other."""
    value, bound = turns.turned(*((x, 0 * x) if norm != "before" else reference.rms_norm(x, weight, EPS)))
    if norm != "after":
        return value, bound
    # The errors of a head's values, and of their norm, which is off by no more than these are in all.
    size = np.linalg.norm(value, axis=-1, keepdims=True)
    share = np.linalg.norm(bound, axis=-1, keepdims=True) / size
    value, error = reference.rms_norm(value, weight, EPS)
    return value, bound * np.abs(weight) * np.sqrt(x.shape[-1]) / size + np.abs(value) * share + error


def rope_store(
    rng: Rng,
    sizes: tuple[int, ...],
    turns: Turns,
    kv_dtype: KvCacheDtype = "bf16",
    norm: str = "none",
    source: str = "projected",
    norms_values: bool = False,
) -> Case:
    """Queries, and what the cache keeps of keys and values. `sizes` are the numbers of query heads and KV heads, and
    the dimensions of keys and, if these are others, of values."""
    heads, weighted, order = Heads(*sizes), norm in ("before", "after"), norm.partition(" ")[0]
    q, k, v = (
        normal(rng, ROWS, count, dim)
        for count, dim in ((heads.query, heads.dim), (heads.kv, heads.dim), (heads.kv, heads.values))
    )
    if turns.still:
        k, v = extreme(rng, k), extreme(rng, v)
    stored = {"projected": (k, v), "keys": (k, k), "cached": ()}[source]
    norms = [normal(rng, heads.dim) if weighted else np.ones(heads.dim, np.float32) for _ in range(2)]
    expected = [flat(turns.queries(normed(q.astype(np.float64), order, norms[0], turns)), 32)]
    if stored:
        keys = normed(stored[0].astype(np.float64), order, norms[1], turns)
        values = reference.rms_norm(stored[1], np.float32(1), EPS) if norms_values else (stored[1], 0.0 * stored[1])
        for value, off in (keys, values):
            exact = kv_reference.kept(kv_dtype, value.astype(np.float32)), 0.0
            bounded = value, off + kv_reference.rounding(kv_dtype, value, off)
            expected.append(flat(bounded if off.any() else exact))
    how: dict[str, Any] = dict(zip(("q_norm", "k_norm"), map(Vector, norms), strict=True)) if weighted else {}
    how |= {"norm": order, "eps": EPS, "source": source, "norm_values": norms_values}
    own = {"projected": (q, k, v), "keys": (q, k), "cached": (q,)}[source]
    return Case(
        given={"qkv": np.hstack([each.reshape(ROWS, -1) for each in own])},
        lengths=LENGTHS,
        caches=(CacheKind(heads),),
        kv_dtype=kv_dtype,
        record=lambda b, qkv: b.qkv_rope(qkv, cache=LAYER, rope=turns.table(), **how),
        expected=expected,
    )


def extreme(rng: Rng, x: F32) -> F32:
    """Tokens of zeros, of very small and very large values, and of ties; these have a power of two for a scale."""
    x = x * np.float32(10.0) ** rng.integers(-12, 13, (len(x), 1, 1), dtype=np.int32)
    x[3], x[4], x[40] = 0, x[4] * np.float32(1e-30), x[40] * np.float32(1e20)
    shape = x.shape[1:]
    for token in (7, 45, 74):
        x[token] = rng.integers(-254, 255, shape) / 2  # for int8
        x[token, :, 0] = 127
    for token in (9, 50, 70):
        x[token] = rng.integers(-1023, 1024, shape) * 2.0 ** rng.integers(-14, -1, shape[-1])  # for e4m3
        x[token, :, 0] = 448
    return x


def latent_store(rng: Rng, heads: int, nope: int, rope: int, latent: int, scaled: bool = False) -> Case:
    """Queries, absorbed and rotated, and latents with the shared key."""
    kind, turns = Heads(heads, 1, latent + rope, latent, is_latent=True), Turns(rope // 2, scaled=scaled)
    q, kv, norm = normal(rng, ROWS, heads, nope + rope), 3 * normal(rng, ROWS, 1, latent + rope), normal(rng, latent)
    absorb = to_bf16(normal(rng, heads * latent, nope))
    plain, plain_off = turns.queries((q[..., :nope].astype(np.float64), np.zeros((ROWS, heads, nope))))
    weights = from_bf16(absorb).astype(np.float64).reshape(heads, latent, nope)
    absorbed = np.einsum("thn,hln->thl", plain, weights)
    off = np.einsum("thn,hln->thl", plain_off + reference.accumulation(nope) * np.abs(plain), np.abs(weights))
    parts = in_bf16((absorbed, off)), turns.queries(turns.turned(q[..., nope:].astype(np.float64), 0 * q[..., nope:]))
    normed_latent = in_bf16(reference.rms_norm(kv[..., :latent], norm, EPS))
    stored = normed_latent, in_bf16(turns.turned(kv[..., latent:].astype(np.float64), 0 * kv[..., latent:]))

    def record(b: ProgramBuilder, q: Tensor, kv: Tensor) -> Buffer:
        apart, query = Operand(q.rows, heads * nope, 2), Tensor(q.rows, heads * kind.dim, 2)
        how = {"nope_dim": nope, "rope": turns.table(), "norm": Vector(norm), "eps": EPS}
        b.operations.append(LatentStore(q=q, kv=kv, nope=apart, query=query, cache=LAYER, **how))
        b._head_linear("absorb", apart, packed(absorb), query, heads)
        return query

    return Case(
        given={"q": q.reshape(ROWS, -1), "kv": kv.reshape(ROWS, -1)},
        lengths=LENGTHS,
        caches=(CacheKind(kind),),
        record=record,
        expected=[flat(beside(*both)) for both in (parts, stored)],
    )


STORED = [((1, 1, 32), 32), ((9, 3, 64), 64), ((4, 2, 80), 32), ((3, 1, 100), 50), ((2, 2, 256), 256)]
CASES = table(
    rope_store,
    *(
        (sizes, Turns(turned // 2), dtype, norm)
        for (sizes, turned), dtype, norm in product(
            STORED, kv_reference.DTYPES, ("none", "before", "after", "after without weights")
        )
    ),
    *(((2, 2, dim), Turns(1, still=True), dtype) for dim in (32, 80, 100, 256) for dtype in kv_reference.DTYPES),
    *(((4, 2, 96, 64), Turns(16), dtype) for dtype in kv_reference.DTYPES),
    *(((4, 2, 96), Turns(10, 48), dtype) for dtype in kv_reference.DTYPES),
    *(((4, 2, 80), Turns(16), dtype, "before without weights", "keys", True) for dtype in kv_reference.DTYPES),
    ((3, 1, 192, 128), Turns(16)),
    ((2, 2, 40, 56), Turns(16)),
    ((4, 2, 80), Turns(32, scaled=True)),
    ((2, 1, 512), Turns(256), "bf16", "before without weights", "keys", True),
    ((2, 2, 48), Turns(24), "bf16", "none", "projected", True),
    ((3, 1, 64), Turns(32), "bf16", "before", "cached"),
) | table(latent_store, (1, 32, 32, 32), (3, 64, 32, 128), (16, 128, 64, 512), (5, 96, 64, 256), (3, 64, 32, 128, True))
