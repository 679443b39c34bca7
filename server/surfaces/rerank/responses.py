"""The formats of rankings and scores for the OpenAPI document, after Jina's, Cohere's and vLLM's references."""

from typing import Literal

from numaserve.server.surfaces.response_models import PromptUsage
from pydantic import BaseModel


class RankedDocument(BaseModel):
    """A document as the client sent it."""

    text: str


class RankedResult(BaseModel):
    """A ranked document; `index` is its position in the request. Results are sorted by descending score."""

    index: int
    relevance_score: float
    document: RankedDocument | None = None


class Ranking(BaseModel):
    """The response of POST /v1/rerank."""

    id: str
    model: str
    results: list[RankedResult]
    usage: PromptUsage


class RankedText(BaseModel):
    """A ranked text, in the format of text-embeddings-inference."""

    index: int
    score: float
    text: str | None = None


class Score(BaseModel):
    """The score of a document for its query; a probability for most models."""

    index: int
    object: Literal["score"]
    score: float


class ScoreList(BaseModel):
    """The response of POST /v1/score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PromptUsage
