"""Cases of attention, to heads of keys and values and to latents."""

from dataclasses import dataclass, fields, replace
from itertools import product

import kernel_reference as reference
import kv_reference
import numpy as np
from kernel_ops import packed
from kernel_reference import BF16, F32, F64, Bounded, from_bf16, to_bf16
from numaserve.kernels import RopeTable, Vector
from numaserve.workers.interface.settings import KvCacheDtype
from numaserve.workers.interface.windows import ALL, Window
from numaserve.workers.program.buffers import Buffer, Operand, Tensor
from numaserve.workers.program.caches import CacheKind, Heads
from numaserve.workers.program.ops.latent import LatentStore
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.slots import END_POOL
from one_operation import LAYER, Case, image_ranges, normal, table

Rng = np.random.Generator
LENGTHS = (1, 33, 70, 300)
STILL = RopeTable(np.ones((4096, 1), np.float32), np.zeros((4096, 1), np.float32))
LOW = -2.0  # the product of queries and keys of which every score is very low


@dataclass(frozen=True)
class AttentionOptions:
    """Options of attention besides its heads. `others`: query heads of these KV heads that lower and higher ranks
    have. `multiplied`: a product reads the results."""

    scale: float = 0.125
    window: Window = ALL
    softcap: float = 0.0
    value_scale: float = 1.0
    sinks: tuple[float, ...] = ()
    others: tuple[int, int] = (0, 0)
    multiplied: bool = False
    grids: tuple[tuple[int, ...], ...] = ()  # of the images of each sequence

    def __str__(self) -> str:
        changed = [each.name for each in fields(self) if getattr(self, each.name) != each.default]
        return " ".join(f"{name}={getattr(self, name)}" for name in changed)


def attention(
    rng: Rng,
    sizes: tuple[int, ...],
    how: AttentionOptions = AttentionOptions(),
    kv_dtype: KvCacheDtype = "bf16",
    lengths: tuple[int, ...] = LENGTHS,
    scores: str = "",
) -> Case:
    """Attention of random tokens, whose keys and values differ in magnitude, as they do in models. `sizes` are those of
    `Heads`. `scores`: "low", or "large", of which the largest takes all, or "unknown": too many for float64,
    and threads have items of several blocks."""
    query, kv, dim, *value_dim = sizes
    heads = Heads(query, kv, dim, *value_dim, lower=how.others[0], higher=how.others[1])
    rows = sum(lengths)
    q = from_bf16(to_bf16(normal(rng, rows, query, dim)))
    k, v = (
        normal(rng, rows, kv, each) * rng.uniform(0.1, 1.5, (rows, kv, 1)).astype(np.float32)
        for each in (dim, heads.values)
    )
    v[rng.random(rows) < 0.1] = 0  # such a token's weight counts too
    if scores == "low":
        q[:], k[:] = LOW, -LOW
    sinks = np.resize(np.array(how.sinks, np.float32), query) if how.sinks else None
    columns = query * heads.values
    identity = packed(to_bf16(np.eye(columns))) if how.multiplied else None

    def record(b: ProgramBuilder, qkv: Tensor) -> Buffer:
        turned = b.qkv_rope(qkv, cache=LAYER, rope=STILL)
        more = {"sinks": None if sinks is None else Vector(sinks), "value_scale": how.value_scale}
        made = b.attention(turned, cache=LAYER, scale=how.scale, softcap=how.softcap, **more)
        out = made if identity is None else b.linear(made, identity)
        if how.window.bidirectional:  # sequences are whole then, which those that are pooled are
            b.pool(qkv, "last")
        return out

    of = q, kv_reference.kept(kv_dtype, k), kv_reference.kept(kv_dtype, v)
    expected = [] if scores == "unknown" else [attended(of, lengths, how, sinks, largest=scores == "large")]
    return Case(
        given={"qkv": np.hstack([each.reshape(rows, -1) for each in (q, k, v)])},
        lengths=lengths,
        prefix=3000 if scores == "unknown" else 0,
        grids=how.grids,
        end=END_POOL if how.window.bidirectional else 0,
        caches=(CacheKind(heads, how.window),),
        kv_dtype=kv_dtype,
        record=record,
        expected=expected,
    )


def attended(
    of: tuple[F32 | F64, F64, F64],
    lengths: tuple[int, ...],
    how: AttentionOptions = AttentionOptions(),
    sinks: F32 | None = None,
    *,
    largest: bool = False,
) -> Bounded:
    """The results of sequences that follow each other. With `largest`, those of the largest score alone."""
    found = []
    grids = how.grids or ((),) * len(lengths)
    parts = zip(*(np.split(each, np.cumsum(lengths)[:-1]) for each in of), strict=True)
    for own, of_images in zip(parts, grids, strict=True):
        q, k, v = (each.astype(np.float64) for each in own)
        if largest:  # where it is far enough above the second one
            scores = np.where(np.tri(len(q))[:, None] > 0, np.einsum("qhd,kd->qhk", q, k[:, 0]), -np.inf)
            best, (second, first) = scores.argmax(2), np.moveaxis(np.sort(scores, axis=2)[..., -2:], 2, 0)
            is_clear = ((first - second) * how.scale > 60)[..., None]
            found.append((v[best, 0], np.where(is_clear, BF16 * np.abs(v[best, 0]) + 1e-25, np.inf)))
            continue
        mine = slice(how.others[0], how.others[0] + q.shape[1])
        q = np.pad(q, [(0, 0), how.others, (0, 0)])
        window = {"window": how.window.tokens, "aligned": how.window.aligned, "bidirectional": how.window.bidirectional}
        all_sinks = None if sinks is None else np.pad(sinks, how.others)
        images = image_ranges(of_images) if how.window.images else []
        more = {"scale": how.scale, "softcap": how.softcap, "sinks": all_sinks, "images": images}
        value, bound = reference.attention(q, k, v, 0, **more, **window)
        found.append((how.value_scale * value[:, mine], how.value_scale * bound[:, mine]))
    value, bound = (np.concatenate(each).reshape(sum(lengths), -1) for each in zip(*found, strict=True))
    return value, bound


def latent_attention(
    rng: Rng,
    heads: int,
    latent: int,
    rope: int,
    lengths: tuple[int, ...] = LENGTHS,
    scale: float = 0.07,
    scores: str = "",
) -> Case:
    """Attention to latents of signs, which a norm leaves as they are, and keys that are not turned. Each dimension of a
    query is one of those that it is absorbed from."""
    kind, rows, nope = Heads(heads, 1, latent + rope, latent, is_latent=True), sum(lengths), 32
    chosen = rng.integers(0, nope, (heads, latent))
    q, key = (from_bf16(to_bf16(normal(rng, rows, *shape))) for shape in ((heads, nope + rope), (1, rope)))
    signs = rng.choice(np.array([-1, 1], np.float32), (rows, 1, latent))
    if scores == "low":
        q[:], key[:], signs[:] = LOW, -LOW, 1
    absorb = packed(to_bf16(np.eye(nope)[chosen].reshape(-1, nope)))
    kv = np.concatenate([signs, key], axis=2)

    def record(b: ProgramBuilder, q: Tensor, kv: Tensor) -> Buffer:
        apart, query = Operand(q.rows, heads * nope, 2), Tensor(q.rows, heads * kind.dim, 2)
        how = {"nope_dim": nope, "rope": turned, "norm": Vector(np.ones(latent, np.float32)), "eps": 0.0}
        b.operations.append(LatentStore(q=q, kv=kv, nope=apart, query=query, cache=LAYER, **how))
        b._head_linear("absorb", apart, absorb, query, heads)
        out = Operand(q.rows, heads * latent, 2)
        b._attend(query, out, LAYER, scale)
        return out

    turned = RopeTable(*(np.full((4096, rope // 2), each, np.float32) for each in (1, 0)))
    absorbed = np.concatenate([np.take_along_axis(q, chosen[None], axis=2), q[..., nope:]], axis=2)
    of = absorbed, kv.astype(np.float64), signs.astype(np.float64)
    return Case(
        given={"q": q.reshape(rows, -1), "kv": kv.reshape(rows, -1)},
        lengths=lengths,
        prefix=3000 if scores == "unknown" else 0,
        caches=(CacheKind(kind),),
        record=record,
        expected=[]
        if scores == "unknown"
        else [attended(of, lengths, AttentionOptions(scale), largest=scores == "large")],
    )


HEADS = [(1, 1, 32), (4, 2, 64), (9, 3, 64), (8, 1, 128), (3, 3, 80), (6, 2, 100), (2, 1, 256)]
UNEQUAL = [(4, 2, 192, 128), (6, 3, 80, 40), (2, 1, 48, 100)]
MODEL, LONG, DTYPES = (4, 2, 64), (40, 600), kv_reference.DTYPES
# Query heads and KV heads of a rank, their dimensions, and query heads of these KV heads that others have: uneven
# numbers for each KV head, a part of one, the end of one and the start of the next, a KV head that none reads.
PARTS = [(11, 2, 64, (0, 5)), (17, 3, 64, (5, 2)), (3, 1, 128, (1, 1)), (2, 2, 80, (3, 3)), (7, 3, 32, (5, 0))]
WINDOWS = [Window(tokens) for tokens in (1, 5, 32, 100, 256, 300)]
WINDOWS += [Window(tokens, aligned=True) for tokens in (1, 40, 256, 300)]
WINDOWS += [Window(tokens, bidirectional=True) for tokens in (0, 1, 64, 255, 300)]
# Images at the beginning, over the edges of pages, row blocks and blocks, next to each other, and longer than windows.
GRIDS = ((0, 4, 10), (20, 3, 9, 60, 7, 5, 95, 4, 4, 240, 5, 6, 300, 1, 1, 301, 10, 20))
SEEN = [AttentionOptions(window=Window(tokens, images=True), grids=GRIDS) for tokens in (0, 8, 100, 256)]
SINKS = [(-1e4, -1e4), (-100.0, -99.0), (0.0, 1.0), (30.0, 29.0), (80.0, 81.0), (1e4, -1e4)]
CASES = (
    table(attention, *product(HEADS, [AttentionOptions()], DTYPES))
    | table(attention, *product(UNEQUAL, [AttentionOptions(0.1, Window(200), value_scale=0.707)], DTYPES))
    | table(attention, *((MODEL, AttentionOptions(window=each), "bf16", LONG) for each in WINDOWS))
    | table(attention, *((MODEL, each, "bf16", LONG) for each in SEEN))
    | table(attention, ((9, 1, 64), replace(SEEN[2], sinks=(0.0, 1.0)), "int8", LONG))
    | table(
        attention,
        *((MODEL, AttentionOptions(window=each), dtype, LONG) for each in WINDOWS[4::4] for dtype in DTYPES[1:]),
    )
    | table(
        attention,
        *((MODEL, AttentionOptions(1.0, softcap=each), dtype) for each, dtype in product((5.0, 50.0), DTYPES)),
    )
    | table(attention, *((MODEL, AttentionOptions(sinks=each)) for each in SINKS))
    | table(
        attention,
        *(
            (sizes, AttentionOptions(window=Window(200), sinks=(0.0, 1.0, -1.0), others=others))
            for *sizes, others in PARTS
        ),
        *((sizes, AttentionOptions(multiplied=True)) for sizes in ((4, 2, 64), (3, 3, 80), (6, 2, 100))),
        *(((2, 1, 64), AttentionOptions(1000.0), dtype, (300,), "large") for dtype in DTYPES),
        *(((2, 1, 64), AttentionOptions(1.0), dtype, (270,), "low") for dtype in DTYPES),
        *(((2, 2, 32), AttentionOptions(), dtype, (3120,), "unknown") for dtype in DTYPES),
        ((2, 2, 32), AttentionOptions(window=Window(2900)), "bf16", (3120,), "unknown"),
    )
    | table(latent_attention, (1, 512, 64), (3, 64, 32), (5, 256, 32), (37, 32, 32), (16, 512, 64, (1, 70)))
    | table(latent_attention, (2, 64, 32, (300,), 1000.0, "large"), (2, 64, 32, (270,), 1.0, "low"))
    | table(latent_attention, (1, 32, 32, (3120, 3100), 0.07, "unknown"))
)
