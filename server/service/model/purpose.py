"""The purpose of a model, as the server's task and the model's files decide it."""

from pathlib import Path

from numaserve.server.config.tasks import Task
from numaserve.server.generation.purpose import Embeds, Generates, Purpose
from numaserve.server.service.model.classifier import read_classifier
from numaserve.server.service.model.embedding import embedding_settings, sparse_output
from numaserve.server.service.model.reranker import find_judge
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.models.spec import ModelConfig


def find_purpose(task: Task, folder: Path, model: ModelConfig, tokenizer: TokenizerProtocol) -> Purpose:
    """Return the purpose of the `model` in `folder`, which was read for the `task`.

    Raises `OperatorError` for a model that is no reranker, and for files that declare unsupported settings.
    """
    if model.decoder.head is not None:
        return Generates(find_judge(folder, tokenizer) if task == "score" else None)
    if model.labels:
        return read_classifier(folder, model)
    token_head = model.decoder.token_head
    return Embeds(
        dense=0 if model.is_sparse else model.vector_size,
        sparse=sparse_output(folder, model, tokenizer.special_token_ids),
        tokens=0 if token_head is None else token_head.vectors,
        settings=embedding_settings(folder),
    )
