"""The purpose that a route needs, and the errors of routes that need another purpose than the model's."""

from collections.abc import Mapping

from numaserve.server.config.tasks import ROUTES, Task
from numaserve.server.generation.judge import Judge
from numaserve.server.generation.purpose import Classifies, Embeds, Generates, Purpose
from numaserve.server.generation.sparse import SparseOutput
from numaserve.server.http.errors import ApiError, bad_request

_USES: Mapping[Task, str] = {
    "embed": "serves embeddings",
    "sparse": "serves sparse vectors",
    "score": "scores texts",
    "classify": "classifies texts",
}


def check_generates(purpose: Purpose) -> None:
    """Raise `ApiError` for a model that writes no text."""
    if not isinstance(purpose, Generates):
        task = purpose.task
        raise _unsupported(f"This model {_USES[task]} and cannot generate text. Use {ROUTES[task]}.")


def dense_vectors(purpose: Purpose) -> Embeds:
    """Return the purpose of a model with a vector for each text. Raises `ApiError` for other models."""
    if isinstance(purpose, Embeds) and purpose.dense:
        return purpose
    raise _unsupported("This model does not serve embeddings. The operator can start the server with '--task embed'.")


def check_token_vectors(purpose: Embeds, param: str) -> None:
    """Raise `ApiError` for a model without vectors of tokens. `param` is the field that asks for them."""
    if not purpose.tokens:
        message = (
            f"This model has no vectors of tokens. Leave '{param}' out, or ask a model that has them, such as BGE-M3."
        )
        raise _unsupported(message, param)


def sparse_vectors(purpose: Purpose) -> tuple[Embeds, SparseOutput]:
    """Return the purpose of a model with sparse vectors, and their form. Raises `ApiError` for other models."""
    if isinstance(purpose, Embeds) and purpose.sparse is not None:
        return purpose, purpose.sparse
    raise _unsupported("This model has no sparse vectors. Ask a SPLADE model or BGE-M3.")


def classifier(purpose: Purpose) -> Classifies:
    """Return the purpose of a model with a classification head. Raises `ApiError` for other models."""
    if isinstance(purpose, Classifies):
        return purpose
    raise _unsupported("This model has no classification head. Ask a model that has one.")


def scorer(purpose: Purpose) -> Classifies | Judge:
    """Return the part of a model that scores documents: its only label, or its judge. Raises `ApiError` for other
    models."""
    match purpose:
        case Classifies(task="score"):
            return purpose
        case Classifies(labels=labels):
            raise _unsupported(f"This model has {len(labels)} labels and no score of a document. Use /predict.")
        case Generates(judge=Judge() as judge):
            return judge
    raise _unsupported("This model does not score documents. The operator can start the server with '--task score'.")


def _unsupported(message: str, param: str = "model") -> ApiError:
    return bad_request(message, param, "task_unsupported")
