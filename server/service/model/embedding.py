"""The prompts and the form of embeddings, as a model's files declare them."""

from pathlib import Path

from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.sparse import SparseOutput
from numaserve.workers.models.config.sentence_transformers import read_sentence_modules
from numaserve.workers.models.spec import ModelConfig


def embedding_settings(model: Path) -> EmbeddingSettings:
    """Return the settings of the model's embeddings, the default ones for a model without files of
    sentence-transformers. Raises `OperatorError` like `read_sentence_modules`."""
    modules = read_sentence_modules(model)
    if modules is None:
        return EmbeddingSettings()
    return EmbeddingSettings(modules.prompts, modules.default_prompt, modules.lowercase, modules.normalize)


def sparse_output(folder: Path, model: ModelConfig, special_tokens: frozenset[int]) -> SparseOutput | None:
    """Return the form of the sparse vectors of the `model` in `folder`; None for a model without any. Weights of single
    tokens leave out the special tokens, as FlagEmbedding does. Raises `OperatorError` like `read_sentence_modules`."""
    head = model.decoder.token_head
    if head is not None and head.has_weights:
        return SparseOutput(left_out=special_tokens)
    modules = read_sentence_modules(folder) if model.is_sparse else None
    return None if modules is None else SparseOutput(modules.logarithms)
