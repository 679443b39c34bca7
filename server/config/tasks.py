"""The tasks of a server, and the route of each."""

from collections.abc import Mapping
from typing import Literal

Task = Literal["generate", "embed", "sparse", "score", "classify"]

ROUTES: Mapping[Task, str] = {
    "generate": "/v1/chat/completions",
    "embed": "/v1/embeddings",
    "sparse": "/embed_sparse",
    "score": "/v1/rerank",
    "classify": "/predict",
}
