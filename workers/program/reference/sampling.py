"""The sampler in float64: what may be drawn, with which probabilities, in which order, and at which random number."""

from collections.abc import Sequence

import numpy as np
from numaserve.workers.interface.protocol import SamplingParams, TokenLogprobs
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Allowed = NDArray[np.bool_]  # of each token

LOWEST_TEMPERATURE = 1e-5  # below it sampling is greedy


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
    values: F64 = x - peak - np.log(np.exp(x - peak).sum())
    return values


def adjusted(
    logits: F32,
    params: SamplingParams,
    position: int,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    *,
    allowed: Allowed | None = None,
) -> F32:
    """Logits after penalties, bias, mask and suppression, each step rounded to fp32; suppression gives way to the mask
    where nothing would be left."""
    x = logits.copy()
    seen = np.zeros(len(x), bool)
    seen[[*prompt, *output]] = True
    repetition = np.float32(params.repetition_penalty)
    x = np.where(seen, np.where(x > 0, x / repetition, x * repetition), x)
    counts = np.bincount(np.array(output, np.int64), minlength=len(x)).astype(np.float32)
    x = np.where(counts > 0, x - np.float32(params.frequency_penalty) * counts - np.float32(params.presence_penalty), x)
    for token, bias in params.logit_bias.items():
        x[token] += np.float32(bias)
    if allowed is not None:
        x[~allowed] = -np.inf
    if position < params.min_position:
        suppressed = x.copy()
        suppressed[params.suppress] = -np.inf
        if allowed is None or _is_left(suppressed):
            return suppressed
    return x


def is_dropped(x: F32, allowed: Allowed | None) -> bool:
    """Whether the mask leaves nothing of adjusted logits x."""
    return allowed is not None and not _is_left(x)


def _is_left(x: F32) -> bool:
    return bool((x > -np.inf).any())


def allowed_tokens(mask: bytes, vocabulary: int) -> Allowed:
    """The tokens whose bits are set, as a mask board has them."""
    return np.unpackbits(np.frombuffer(mask, np.uint8), count=vocabulary, bitorder="little").astype(np.bool_)


def named_logprobs(logits: F32, tokens: Sequence[int]) -> list[float]:
    """Log-probabilities of some tokens."""
    values: list[float] = log_softmax(logits)[list(tokens)].tolist()
    return values


def distribution(x: F32, params: SamplingParams) -> tuple[NDArray[np.int64], F64]:
    """Return the tokens in the order of drawing, and their probabilities, for adjusted logits x."""
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


def sampled_token(x: F32, params: SamplingParams, position: int) -> int:
    """The token that the draw of a position gives, for adjusted logits x; the largest logit's where there is none."""
    if params.temperature < LOWEST_TEMPERATURE or not usable(x):
        return int(np.argmax(np.where(np.isnan(x), -np.inf, x)))
    ids, probabilities = distribution(x, params)
    drawn = int(np.searchsorted(np.cumsum(probabilities), uniform(params.seed, position), side="right"))
    return int(ids[min(drawn, np.flatnonzero(probabilities)[-1])])


def usable(logits: F32) -> bool:
    """Whether logits have a softmax: none is NaN, and the largest is finite."""
    return bool(np.isfinite(logits.max()))


def token_logprobs(logits: F32, token: int, count: int) -> TokenLogprobs:
    """Log-probabilities of a token and of the `count` most likely ones."""
    values = log_softmax(logits)
    top = np.argsort(-values, kind="stable")[:count]
    return TokenLogprobs(token, float(values[token]), top.tolist(), values[top].tolist())
