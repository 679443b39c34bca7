"""The tasks of a server, and the route of each."""

from collections.abc import Mapping, Sequence
from typing import Literal

Task = Literal["generate", "embed", "sparse", "score", "classify"]

ROUTES: Mapping[Task, str] = {
    "generate": "/v1/chat/completions",
    "embed": "/v1/embeddings",
    "sparse": "/embed_sparse",
    "score": "/v1/rerank",
    "classify": "/predict",
}


def task_of_labels(labels: Sequence[str]) -> Task:
    """Return the task of a classifier: the value of a single label is a score."""
    return "score" if len(labels) == 1 else "classify"
