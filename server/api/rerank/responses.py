"""The shapes of rankings and scores, for the OpenAPI document: Jina's and Cohere's reference, and vLLM's."""

from typing import Literal

from numaserve.server.api.response_models import PromptUsage
from pydantic import BaseModel


class RankedDocument(BaseModel):
    """A document as it was sent."""

    text: str


class RankedResult(BaseModel):
    """`index` is the document's in the request; the best score comes first."""

    index: int
    relevance_score: float
    document: RankedDocument | None = None


class Ranking(BaseModel):
    """The answer of /v1/rerank."""

    id: str
    model: str
    results: list[RankedResult]
    usage: PromptUsage


class Score(BaseModel):
    """The probability that a document fits its query."""

    index: int
    object: Literal["score"]
    score: float


class ScoreList(BaseModel):
    """The answer of /v1/score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PromptUsage
