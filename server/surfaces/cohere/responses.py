"""The formats of Cohere's answers for the OpenAPI document."""

from numaserve.server.surfaces.openapi import body_errors
from pydantic import BaseModel, Field


class CohereError(BaseModel):
    """The body of every error response."""

    id: str
    message: str


class EmbeddingsByType(BaseModel):
    """The embeddings in each of the requested forms, in the order of the texts."""

    floats: list[list[float]] | None = Field(None, alias="float")
    base64: list[str] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None


class BilledUnits(BaseModel):
    """The number of tokens in all texts."""

    input_tokens: int


class ApiVersion(BaseModel):
    """The version of Cohere's API."""

    version: str


class EmbedMeta(BaseModel):
    """The version of the API and the number of tokens."""

    api_version: ApiVersion
    billed_units: BilledUnits


class EmbedByType(BaseModel):
    """The response of POST /v2/embed."""

    id: str
    embeddings: EmbeddingsByType
    texts: list[str]
    meta: EmbedMeta


BODY_ERRORS = body_errors(CohereError)
