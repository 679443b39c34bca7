"""What the kernels compute, in float64, and how far fp32 and bf16 may be from it.

**Tolerances, all of them.** `FP32` = 2^-24 and `BF16` = 2^-8 are the unit roundoffs: the relative error of one rounding
to nearest (bf16 keeps 8 significant bits). A sum of n products accumulated in fp32, in any order, differs from the
exact one by at most n · FP32 · sum |a||b| (Higham, Accuracy and Stability of Numerical Algorithms, ch. 3). That bound
grows faster than any error seen, and for K = 4096 it is as large as a forgotten product; roundings being as good as
independent, the error stays below lambda · sqrt(n) · FP32 · sum |a||b| but for a chance of 2 exp(-lambda² / 2) (Higham
and Mary, 2019). `accumulation(n)` is that with lambda = 6: one chance in 3e7 for one element, and in practice the
errors are a tenth of it. Elementwise functions (exp, tanh, division) get a few units of FP32. References return
(value, bound) where a bound follows from the inputs; tests assert |result - value| <= bound for each element.
"""

import statistics
from collections.abc import Sequence

import numpy as np
from numaserve.workers.program.ops.experts import Routing
from numpy.typing import NDArray

FP32 = 2.0**-24
BF16 = 2.0**-8
PAGE = 32

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]
Bounded = tuple[F64, F64]


def accumulation(n: int) -> float:
    """Relative error of a sum of n products in fp32, relative to the sum of their magnitudes."""
    return 6.0 * np.sqrt(n + 1) * FP32


def to_bf16(x: NDArray[np.floating]) -> U16:
    """The bits of x (rounded to fp32, then) rounded to the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: U16) -> F32:
    """The values of bf16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(x: F64) -> F64:
    """x as a bf16 keeps it."""
    return from_bf16(to_bf16(x)).astype(np.float64)


def matmul(a: U16, b: U16, bias: F32 | None = None) -> Bounded:
    """a [m, k] times b [n, k] transposed, plus bias [n]."""
    x, y = from_bf16(a).astype(np.float64), from_bf16(b).astype(np.float64)
    value, magnitude = x @ y.T, np.abs(x) @ np.abs(y).T
    if bias is not None:
        value, magnitude = value + bias, magnitude + np.abs(bias)
    return value, accumulation(a.shape[1]) * magnitude


def activation(name: str, x: F64) -> F64:
    """SiLU, its steeper form of gpt-oss, or GELU, in its tanh form unless the name is geglu or gelu."""
    if name in ("gelu", "geglu"):
        return x * np.vectorize(statistics.NormalDist().cdf)(x)
    if name in ("silu", "swiglu_oai"):
        return x / (1 + np.exp(-x * (1.0 if name == "silu" else 1.702)))
    if name in ("tanh", "relu", "none"):
        return np.tanh(x) if name == "tanh" else np.maximum(x, 0.0) if name == "relu" else x
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gated(
    a: U16, gate: U16, up: U16, name: str, biases: tuple[F32 | None, F32 | None] = (None, None), limit: float = 0.0
) -> Bounded:
    """activation(a gateᵀ) * (a upᵀ), rounded to bf16."""
    return gated_sums(matmul(a, gate, biases[0]), matmul(a, up, biases[1]), name, limit)


def gated_sums(gate: Bounded, up: Bounded, name: str, limit: float = 0.0) -> Bounded:
    """activation(gate) * up, rounded to bf16. No activation is steeper than 1.13. That of gpt-oss clamps both, and adds
    one to up."""
    (g, g_error), (u, u_error) = gate, up
    if name == "swiglu_oai":
        g, u = np.minimum(g, limit), np.clip(u, -limit, limit) + 1
    value = activation(name, g) * u
    bound = 1.13 * g_error * np.abs(u) + np.abs(activation(name, g)) * u_error
    return value, bound + BF16 * np.abs(value) + 16 * FP32 * np.abs(g * u)


def rms_norm(x: NDArray[np.floating], weight: F32, eps: float) -> Bounded:
    """Rows of x normalised to a root mean square of one, times weight, in fp32."""
    wide = x.astype(np.float64)
    value = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + eps) * weight
    return value, (accumulation(x.shape[-1]) + 8 * FP32) * np.abs(value)


def layer_norm(x: F32, weight: F32, bias: F32 | None, eps: float) -> Bounded:
    """Rows of x at a mean of zero and a variance of one, times weight, plus bias. The sums round by their number of
    terms, next to the largest of a row."""
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    scale = 1 / np.sqrt(np.square(centred).mean(1, keepdims=True) + eps)
    value = centred * scale * weight + (0.0 if bias is None else bias)
    largest = np.abs(wide).max(1, keepdims=True) * scale * np.abs(weight)
    return value, (accumulation(x.shape[1]) + 8 * FP32) * (largest + np.abs(value))


def in_bf16(of: Bounded) -> Bounded:
    """A result rounded to bf16."""
    value, bound = of
    return value, bound + BF16 * np.abs(value)


def rope(x: F64, cos: F32, sin: F32) -> F64:
    """Half rotation of the first 2 * cos.shape[-1] dimensions of x [tokens, heads, dim]; cos is [tokens, half]."""
    half = cos.shape[-1]
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    low, high = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([low * c - high * s, high * c + low * s, x[..., 2 * half :]], axis=-1)


def attention(
    q: F64,
    k: F64,
    v: F64,
    start: int,
    *,
    scale: float,
    window: int = 0,
    aligned: bool = False,
    bidirectional: bool = False,
    images: Sequence[tuple[int, int]] = (),
    softcap: float = 0.0,
    sinks: F32 | None = None,
) -> tuple[F64, F64]:
    """Causal or bidirectional attention of q [tokens, q_heads, dim], the first at position `start`, over k and v
    [positions, kv_heads, dim]; consecutive query heads share a KV head. `sinks` [q_heads] take part in the softmax
    without a value. Tokens of `images`, [first, end) each, see later ones of the same image.

    The probabilities are rounded to bf16 (the weights stay normalised), their powers of two come from a polynomial with
    a relative error of 3e-6, and a score that is off by d changes a probability by a factor exp(d), numerator and
    denominator alike.
    """
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    q, k, v = (each.swapaxes(0, 1) for each in (q, k, v))  # of each head
    scores = q @ k.swapaxes(1, 2) * scale
    off = accumulation(q.shape[2]) * (np.abs(q) @ np.abs(k).swapaxes(1, 2)) * scale
    if softcap > 0:
        scores = softcap * np.tanh(scores / softcap)
        off = off + 8 * FP32 * softcap
    position = start + np.arange(q.shape[1])[:, None]
    key = np.arange(k.shape[1])[None]
    first = position // window * window if aligned else position - window + 1 if window > 0 else 0 * position
    seen = (key <= position) & (key >= first)
    if bidirectional:
        seen = np.abs(key - position) <= (window or k.shape[1])
    for begin, end in images:
        seen |= (position >= begin) & (position < end) & (key >= np.maximum(position, begin)) & (key < end)
    scores = np.where(seen, scores, -np.inf)
    sink = np.full((len(q), 1, 1), -np.inf) if sinks is None else sinks.astype(np.float64)[:, None, None]
    peak = np.maximum(scores.max(axis=-1, keepdims=True), sink)
    weights = np.exp(scores - peak)
    weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sink - peak)
    value, magnitude = ((weights @ each).swapaxes(0, 1) for each in (v, np.abs(v)))
    factor = 2 * BF16 + 2 * 3e-6 + 2 * off.max() + accumulation(k.shape[1]) + 32 * FP32
    return value, factor * magnitude + BF16 * np.abs(value) + 1e-30


def unpack_k(page: U16) -> U16:
    """The keys [32, padded dim] of a page of one head, which has them as [2 halves][tiles][16 pairs][16 tokens][2]."""
    tiles = page.size // 1024
    return page.reshape(2, tiles, 16, 16, 2).transpose(0, 3, 1, 2, 4).reshape(PAGE, tiles * 32)


def unpack_v(page: U16) -> U16:
    """The values [32, padded dim] of a page of one head, kept as [2 * tiles][16 token pairs][16 dims][2]."""
    columns = page.size // 512
    return page.reshape(columns, 16, 16, 2).transpose(1, 3, 0, 2).reshape(PAGE, columns * 16)


def quantized(x: NDArray) -> tuple[F32, F32]:
    """Whole numbers in [-127, 127] of the rows of x, in fp32, and the rows' scales."""
    wide = x.astype(np.float32)
    peak = np.abs(wide).max(axis=1)
    factor = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    return np.rint(wide * factor[:, None]), peak / np.float32(127)


def expert_scores(logits: F32, routing: Routing, correction: F32 | None) -> tuple[F64, F64]:
    """Scores of all experts, and what they are chosen by: -inf in groups that cannot be chosen from."""
    x = logits.astype(np.float64)
    if routing.scoring == "softmax":
        scores = np.exp(x - x.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    else:
        scores = 1 / (1 + np.exp(-x))
    choice = scores if correction is None else scores + correction
    if routing.num_groups > 1:
        groups = choice.reshape(len(x), routing.num_groups, -1)
        best = np.sort(groups, axis=2)[:, :, ::-1]
        group_scores = best[:, :, 0] if routing.group_score == "max" else best[:, :, :2].sum(axis=2)
        kept = np.argsort(-group_scores, axis=1)[:, : routing.top_groups]
        allowed = np.zeros(group_scores.shape, bool)
        np.put_along_axis(allowed, kept, True, axis=1)
        choice = np.where(allowed[:, :, None], groups, -np.inf).reshape(x.shape)
    return scores, choice
