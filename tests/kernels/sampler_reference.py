"""The sampler in float64: what it may draw, with which probabilities, in which order, and at which random number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from kernel_reference import F32, F64
from numaserve.workers.protocol import SamplingParams
from numpy.typing import NDArray


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., 2011)."""
    mask = 0xFFFFFFFF
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & mask, (first >> 32) ^ c3 ^ k1, first & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The random number of a position, in [0, 1)."""
    mask = 0xFFFFFFFF
    c0, c1, _, _ = philox((position & mask, position >> 32, 0, 0), (seed & mask, seed >> 32))
    return ((c0 >> 5) * 2**26 + (c1 >> 6)) / 2**53


def log_softmax(logits: F32) -> F64:
    """Natural logarithms of the probabilities."""
    x = logits.astype(np.float64)
    peak = x.max()
    return x - peak - np.log(np.exp(x - peak).sum())


def adjusted(
    logits: F32, params: SamplingParams, position: int, prompt: Sequence[int] = (), output: Sequence[int] = ()
) -> F32:
    """Logits after penalties, bias and suppression, each step rounded to fp32."""
    x = logits.copy()
    seen = np.zeros(len(x), bool)
    seen[[*prompt, *output]] = True
    repetition = np.float32(params.repetition_penalty)
    x = np.where(seen, np.where(x > 0, x / repetition, x * repetition), x)
    counts = np.bincount(np.array(output, np.int64), minlength=len(x)).astype(np.float32)
    x = np.where(counts > 0, x - np.float32(params.frequency_penalty) * counts - np.float32(params.presence_penalty), x)
    for token, bias in params.logit_bias.items():
        x[token] += np.float32(bias)
    if position < params.min_position:
        x[params.suppress] = -np.inf
    return x


def distribution(x: F32, params: SamplingParams) -> tuple[NDArray[np.int64], F64]:
    """Tokens in the order in which they are drawn and their probabilities, for adjusted logits x."""
    wide = x.astype(np.float64)
    weights = np.exp((wide - wide.max()) / params.temperature)
    limits_k = 0 < params.top_k < len(x)
    if not limits_k and params.top_p >= 1 and params.min_p <= 0:
        return np.arange(len(x)), weights / weights.sum()
    ids = np.argsort(-wide, kind="stable")
    ids = ids[weights[ids] >= params.min_p]
    if limits_k:
        ids = ids[: params.top_k]
    kept = weights[ids] / weights[ids].sum()
    ids = ids[: 1 + int(np.searchsorted(np.cumsum(kept), params.top_p))] if params.top_p < 1 else ids
    return ids, weights[ids] / weights[ids].sum()


def possible_tokens(x: F32, params: SamplingParams, position: int, slack: float = 1e-6) -> set[int]:
    """The token that the draw of a position gives; two where rounding decides between neighbours."""
    ids, probabilities = distribution(x, params)
    u = uniform(params.seed, position)
    first, last = np.searchsorted(np.cumsum(probabilities), [u - slack, u + slack], side="right")
    return {int(token) for token in ids[first : min(int(last), len(ids) - 1) + 1]}
