"""The scores of an encoder that classifies texts, or scores pairs of texts."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Activation = Literal["none", "sigmoid", "softmax"]


def activated(vectors: Sequence[bytes], activation: Activation) -> npt.NDArray[np.float64]:
    """Return the scores of texts from their logits, fp32 little-endian: [texts, labels]."""
    logits = np.stack([np.frombuffer(each, "<f4") for each in vectors]).astype(np.float64)
    if activation == "none":
        return logits
    if activation == "sigmoid":
        scores: npt.NDArray[np.float64] = np.vectorize(sigmoid, otypes=[np.float64])(logits)
        return scores
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: npt.NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return shares


def sigmoid(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)). Unlike numpy's, this exponential has the same bits on every machine."""
    smaller = math.exp(-abs(logit))  # at most 1: nothing overflows
    return (1.0 if logit >= 0 else smaller) / (1.0 + smaller)
