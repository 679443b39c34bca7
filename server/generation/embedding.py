"""Embeddings, in the form that all API surfaces share."""

import numpy as np
import numpy.typing as npt
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.errors import bad_request

_LEAST_NORM = 1e-12  # as in torch's `normalize`, for vectors of zeros


def check_embeds(context: ApiContext, dimensions: int | None) -> None:
    """Raise `ApiError` where the model is not served for embeddings, or has fewer than `dimensions` dimensions."""
    if not context.embedding_size:
        message = "This model does not serve embeddings. The operator can start the server with '--task embed'."
        raise bad_request(message, "model", "task_unsupported")
    if dimensions is not None and dimensions > context.embedding_size:
        message = f"'dimensions' is {dimensions}, but this model's embeddings have {context.embedding_size} dimensions."
        raise bad_request(message, "dimensions", "too_many_dimensions")


def embedding(pooled: bytes, dimensions: int | None, *, normalize: bool) -> npt.NDArray[np.float32]:
    """Return the first `dimensions` of a sequence's pooled fp32 values, scaled to length 1 with `normalize`.

    The scaling comes last: the truncation of a vector of length 1 is shorter, and clients take dot products for
    cosines.
    """
    values = np.frombuffer(pooled, "<f4")[:dimensions]
    if not normalize:
        return values
    wide = values.astype(np.float64)
    return (wide / max(float(np.linalg.norm(wide)), _LEAST_NORM)).astype("<f4")
