"""The prompts and the form of embeddings, as a model's files declare them."""

from pathlib import Path

from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.sparse import SparseOutput
from numaserve.workers.models.config.sentence_transformers import read_sentence_modules


def embedding_settings(model: Path) -> EmbeddingSettings:
    """Return the settings of the model's embeddings, the default ones for a model without files of
    sentence-transformers. Raises `OperatorError` like `read_sentence_modules`."""
    modules = read_sentence_modules(model)
    if modules is None:
        return EmbeddingSettings()
    return EmbeddingSettings(modules.prompts, modules.default_prompt, modules.lowercase, modules.normalize)


def sparse_output(model: Path) -> SparseOutput | None:
    """Return the form of the model's sparse vectors; None for a model without any. Raises `OperatorError` like
    `read_sentence_modules`."""
    modules = read_sentence_modules(model)
    return None if modules is None or not modules.logarithms else SparseOutput(modules.logarithms)
