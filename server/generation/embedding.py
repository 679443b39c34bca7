"""Embeddings, in the forms that all API surfaces share."""

import base64

import numpy as np
import numpy.typing as npt
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.embedding_settings import Form
from numaserve.server.generation.purpose import Embeds
from numaserve.server.generation.served_purpose import check_token_vectors, dense_vectors
from numaserve.server.http.errors import bad_request
from numaserve.workers.interface.vectors import decoded_rows

_LEAST_NORM = 1e-12  # as in torch's `normalize`, for vectors of zeros
_PACKED = frozenset({"binary", "ubinary"})


def check_embeds(context: ApiContext, dimensions: int | None, *forms: Form | None, param: str = "dimensions") -> Embeds:
    """Return the purpose of a model that serves embeddings. `param` is the field of the dimensions.

    Raises `ApiError` for other models, for more `dimensions` than the model's, and for a number of dimensions that one
    of the `forms` cannot hold.
    """
    purpose = dense_vectors(context.purpose)
    size = purpose.dense
    if dimensions is not None and dimensions > size:
        message = f"'{param}' is {dimensions}, but this model's embeddings have {size} dimensions."
        raise bad_request(message, param, "too_many_dimensions")
    returned = dimensions or size
    if _is_unpacked(returned, *forms):
        message = (
            f"The embeddings have {returned} dimensions, and binary embeddings hold 8 dimensions in a byte. "
            f"Send a multiple of 8 as '{param}', or request another form."
        )
        raise bad_request(message, param, "dimensions_unpacked")
    return purpose


def check_multivectors(purpose: Embeds, form: Form, param: str) -> None:
    """Raise `ApiError` for a model without vectors of tokens, or with a number of dimensions that the `form` cannot
    hold. `param` is the field that asks for them."""
    check_token_vectors(purpose, param)
    size = purpose.tokens
    if _is_unpacked(size, form):
        message = (
            f"The vectors of tokens have {size} dimensions, and binary embeddings hold 8 dimensions in a byte. "
            "Request another form."
        )
        raise bad_request(message, param, "dimensions_unpacked")


def _is_unpacked(dimensions: int, *forms: Form | None) -> bool:
    return dimensions % 8 > 0 and not _PACKED.isdisjoint(forms)


def embedding(pooled: bytes, dimensions: int | None, *, normalize: bool) -> npt.NDArray[np.float32]:
    """Return the first `dimensions` of a sequence's pooled fp32 values, scaled to length 1 with `normalize`.

    The scaling comes last: the truncation of a vector of length 1 is shorter, and clients take dot products for
    cosines.
    """
    values = np.frombuffer(pooled, "<f4")[:dimensions]
    return _normalized(values) if normalize else values


def token_vectors(encoded: bytes, *, normalize: bool) -> npt.NDArray[np.float32]:
    """Return the vectors of a text's tokens, fp32 [tokens, columns], each scaled to length 1 with `normalize`."""
    rows = decoded_rows(encoded)
    return _normalized(rows) if normalize else rows


def _normalized(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    wide = vectors.astype(np.float64)
    scaled: npt.NDArray[np.float32] = (
        wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), _LEAST_NORM)
    ).astype("<f4")
    return scaled


def in_form(values: npt.NDArray[np.float32], form: Form) -> str | list[float] | list[int]:
    """Return an embedding as JSON has it.

    `base64` holds little-endian fp32. `ubinary` has a byte for 8 dimensions, the first in the highest bit, which is 1
    for a positive value; `binary` is that byte minus 128, as Cohere, Jina and sentence-transformers define it.
    """
    if form == "base64":
        return base64.b64encode(values.tobytes()).decode()
    if form in _PACKED:
        packed = np.packbits(values > 0).astype(np.int16)
        whole: list[int] = (packed - 128 * (form == "binary")).tolist()
        return whole
    numbers: list[float] = values.tolist()
    return numbers
