"""The options that a model decides where the operator leaves them out."""

import logging
import math
from typing import Any

from msgspec import structs
from numaserve.server.config.serve import ServeConfig
from numaserve.server.config.tasks import ROUTES, Task, task_of_labels
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.config.sentence_transformers import read_sentence_modules
from numaserve.workers.models.load import ModelFiles, read_config
from numaserve.workers.models.spec import ModelConfig

_log = logging.getLogger(__name__)

_SMALL = 200_000_000  # parameters of an encoder that int8 is worth a warning for


def with_model_defaults(config: ServeConfig, files: ModelFiles) -> ServeConfig:
    """Return the configuration with the task of a bidirectional model, and with the context of its texts.

    Raises `OperatorError` for a task or a draft model that such a model cannot have.
    """
    settings = structs.replace(config.settings, pooled=config.task == "embed", mtp=False)
    model = read_config(files, settings)
    if not model.bidirectional:
        if config.task == "sparse":
            raise OperatorError(
                "--task sparse needs a SPLADE model, an encoder whose modules.json names SpladePooling. Serve such a"
                " model, or leave --task out"
            )
        return config
    if not settings.pooled:
        model = read_config(files, structs.replace(settings, pooled=True))
    task = _task_of(model)
    if config.task == "generate":  # also of `numaserve chat`
        raise OperatorError(
            f"this model is an encoder for the task {task} and generates no text: serve it with `numaserve serve` and"
            f" no --task, and send texts to {ROUTES[task]}"
        )
    if config.task not in (None, task):
        raise OperatorError(
            f"--task {config.task} does not fit this model, an encoder for the task {task}. Set --task {task} or leave"
            " --task out"
        )
    if config.draft_model is not None:
        raise OperatorError(
            "--draft-model needs a model that generates text, and this model is an encoder: leave the option out"
        )
    found: dict[str, Any] = {"settings": structs.replace(config.settings, pooled=True)}
    if config.task is None:
        _log.info("the model is an encoder: the task is %s", task)
        found["task"] = task
    if config.settings.formats.linear == "int8" and (size := _parameters(model)) < _SMALL:
        _log.warning(
            "--quantization int8 changes the results of small encoders, and this encoder has %.0f million parameters. "
            "Leave the option out, or use fp8, which changes them less: docs/embeddings.md has figures",
            size / 1e6,
        )
    if config.context_length is None and (limit := _text_limit(files, model)):
        _log.info(
            "texts have at most %d tokens, as sentence_bert_config.json says; --context-length raises the limit to"
            " at most %d",
            limit,
            model.max_position,
        )
        found["context_length"] = limit
    return config.model_copy(update=found)


def _parameters(encoder: ModelConfig) -> int:
    sources = {source for parameter in encoder.decoder.parameters() for source in parameter.sources}
    return sum(math.prod(source.shape) for source in sources)


def _task_of(encoder: ModelConfig) -> Task:
    """Return the task of an encoder: its head decides."""
    if encoder.labels:
        return task_of_labels(encoder.labels)
    return "sparse" if encoder.is_sparse else "embed"


def _text_limit(files: ModelFiles, model: ModelConfig) -> int | None:
    """Return the tokens of a text as the model was trained; None if it is the context of the model."""
    modules = read_sentence_modules(files.path)
    limit = None if modules is None else modules.max_tokens
    return limit if limit is not None and limit < model.max_position else None
