"""The modules of a model for embeddings, as far as they are served."""

from pathlib import Path

from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.config.sentence_transformers import SentenceModules, read_sentence_modules


def served_modules(model: Path) -> SentenceModules | None:
    """Return the modules that sentence-transformers' files at `model` declare.

    Raises `OperatorError` if its embeddings need modules that are not supported. A model without these files is
    accepted, because the operator has chosen its task: None.
    """
    modules = read_sentence_modules(model)
    if modules is None:
        return None
    if modules.dense:
        raise OperatorError(
            f"{model}: the model's embeddings need {len(modules.dense)} Dense modules, which are not supported: serve"
            " another model"
        )
    return modules


def embedding_settings(model: Path) -> EmbeddingSettings:
    """Return the prompts and the scaling of the model's embeddings. Raises `OperatorError` like `served_modules`."""
    modules = served_modules(model)
    if modules is None:
        return EmbeddingSettings()
    return EmbeddingSettings(modules.prompts, modules.default_prompt, modules.lowercase, modules.normalize)
