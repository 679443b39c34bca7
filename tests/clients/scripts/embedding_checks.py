"""Texts and checks of vectors that the scripts for embeddings share."""

import math
from collections.abc import Sequence

from checks import MODEL, URL

OPENAI, TEI = f"{URL}/v1", f"{URL}/embed"
NAMED = {"model": MODEL}
TEXTS = ["The quick brown fox", "jumps over the lazy dog", "leading and inner spaces"]
LONG = "quick brown " + "lazy fox " * 200 + "inner spaces"  # more tokens than the encoder's context has
SIZE = 72  # dimensions of the encoder's embeddings
_CLOSE = 0.9999

Vector = Sequence[float]


def cosine(one: Vector, other: Vector) -> float:
    """The cosine of the angle between two vectors."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / math.hypot(*one) / math.hypot(*other)


def same(one: Vector, other: Vector) -> bool:
    """Whether two vectors are those of one text."""
    return cosine(one, other) > _CLOSE


def all_same(some: Sequence[Vector], others: Sequence[Vector]) -> bool:
    """Whether the vectors of two lists are those of the same texts."""
    return all(same(one, other) for one, other in zip(some, others, strict=True))


def check_vectors(vectors: Sequence[Vector], size: int = SIZE) -> None:
    """The vectors are of length 1 and of `size` dimensions, and no two are the same."""
    assert [len(vector) for vector in vectors] == [size] * len(vectors)
    assert all(abs(math.hypot(*vector) - 1) < 1e-3 for vector in vectors)
    pairs = [(one, other) for index, one in enumerate(vectors) for other in vectors[:index]]
    assert not any(same(one, other) for one, other in pairs)
