"""The formats of answers of text-embeddings-inference for the OpenAPI document."""

from numaserve.server.surfaces.openapi import body_errors
from pydantic import BaseModel


class Prediction(BaseModel):
    """The score of a label."""

    score: float
    label: str


class SparseEntry(BaseModel):
    """The weight of a token in a sparse vector; `index` is the id of the token."""

    index: int
    value: float


class TeiError(BaseModel):
    """The body of every error response; `error_type` names the cause, such as `Validation` or `Overloaded`."""

    error: str
    error_type: str


BODY_ERRORS = body_errors(TeiError)
