"""Reading of a model's configuration from a Hugging Face folder or a GGUF file, without torch and without any weight.

The reader of GGUF files is imported for such files only: its packages take a sixth of the start time of a worker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import is_there, read_json
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, ModelSettings
from numaserve.workers.layers.dense import Dense
from numaserve.workers.models.config.direction import is_bidirectional
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.image_processor import read_image_processor
from numaserve.workers.models.config.own_head import has_own_head
from numaserve.workers.models.config.quantization import left_out, read_quantization, with_quantization_file
from numaserve.workers.models.config.safetensors_files import SafetensorsFiles
from numaserve.workers.models.config.saved import as_saved
from numaserve.workers.models.config.sentence_transformers import SentenceModules, read_sentence_modules
from numaserve.workers.models.config.token_head import read_token_head
from numaserve.workers.models.gguf import gguf_config
from numaserve.workers.models.registry import family_of, is_served, projector_types
from numaserve.workers.models.spec import ModelConfig, towers_note

if TYPE_CHECKING:
    from numaserve.workers.models.config.gguf_parts import GGUFModel


@dataclass(frozen=True)
class ModelFiles:
    """A model folder, or a GGUF model with its tables read. Reading the tables takes half as long as loading a small
    model, so it is done once, for the configuration and for the weights."""

    path: Path
    gguf: GGUFModel | None  # None: a folder
    safetensors: SafetensorsFiles  # of a folder


def open_model(path: Path, mmproj: str | None = None) -> ModelFiles:
    """Return the model at `path`, a folder or a .gguf file, whose vision tower is in the file `mmproj`, or in one next
    to it. Raises `OperatorError` when there is none, or it is damaged."""
    if path.is_dir():
        if mmproj is not None:
            raise OperatorError(
                f"mmproj is {mmproj}, and {path} is a folder, which has its vision tower in its own files; leave mmproj"
                " out, or give a .gguf file as the model"
            )
        return ModelFiles(path, None, SafetensorsFiles(path))
    if not path.is_file():
        raise OperatorError(f"{path}: no such file or folder; give a model folder, a .gguf file or a hub id")
    if path.suffix != ".gguf":
        raise OperatorError(f"{path}: not a model; give the folder that holds config.json, or a .gguf file")
    from numaserve.workers.models.config.gguf_parts import find_projector, open_gguf_model  # noqa: PLC0415

    model = open_gguf_model(path)
    named = None if mmproj is None else Path(mmproj)
    known = projector_types(str(model.metadata.scalar("general.architecture")))
    model = replace(model, projector=find_projector(path, model.metadata, known, named))
    return ModelFiles(path, model, SafetensorsFiles(path))


def load_model_config(path: Path, settings: ModelSettings = DEFAULT_SETTINGS) -> ModelConfig:
    """Return the configuration of the model at `path`. Raises `OperatorError` as `open_model` and `read_config` do."""
    return read_config(open_model(path, settings.mmproj), settings)


def read_config(files: ModelFiles, settings: ModelSettings = DEFAULT_SETTINGS) -> ModelConfig:
    """Return the configuration of a model that is served with `settings`, without the parts that these settings omit
    and that the checkpoint need not have.

    Nothing in the checkpoint is executed: an `auto_map` is ignored. Raises `OperatorError` when the file cannot be
    read, for an architecture or feature that is not supported, and for values out of range.
    """
    config = read_whole_config(files, pooled=settings.pooled)
    if config.images is not None:
        config = config.seeing(config.images.within(settings.max_image_pixels))
    if not settings.mtp:
        config = config.unpredicted()
    elif config.decoder.predictor is None:
        raise OperatorError(f"{files.path}: the checkpoint has no multi-token prediction (MTP) layer; leave mtp out")
    config = config.staged(settings.stage, settings.stages)
    if config.labels or not settings.pooled:
        return config
    modules = read_sentence_modules(files.path)
    config = config.pooled() if modules is None else _with_modules(config, modules, files.path)
    head = None if config.is_sparse else read_token_head(files.path, config)
    return config if head is None else config.with_token_head(head)


def _with_modules(config: ModelConfig, modules: SentenceModules, path: Path) -> ModelConfig:
    """Return the model with the pooling of its `modules`, and with their Dense layers or the head of SPLADE."""
    if modules.logarithms:
        if config.masked_head is None:
            raise OperatorError(
                f"{path / 'modules.json'}: SPLADE needs the head of a masked language model, and"
                f" {config.architecture} has none that is supported. Serve a model whose class in config.json is"
                " BertForMaskedLM, DistilBertForMaskedLM, RobertaForMaskedLM, XLMRobertaForMaskedLM or"
                " ModernBertForMaskedLM"
            )
        return config.sparse()
    columns = config.hidden_size
    for each in modules.dense:
        if each.inputs != columns:
            raise OperatorError(
                f"{path / each.folder}: in_features is {each.inputs}, but the module before has {columns} features;"
                " download the model again"
            )
        columns = each.outputs
    dense = [
        Dense(f"{each.folder}/linear", each.inputs, each.outputs, each.activation, each.biased)
        for each in modules.dense
    ]
    return config.pooled(modules.pooling).followed_by(dense, [each.folder for each in modules.dense])


def read_whole_config(files: ModelFiles, *, pooled: bool = False) -> ModelConfig:
    """Return the configuration with all parts that the checkpoint claims to have; `pooled`: it may be of a class
    without a head."""
    return _load_hf_config(files, pooled=pooled) if files.gguf is None else gguf_config(files.gguf)


def _load_hf_config(files: ModelFiles, *, pooled: bool) -> ModelConfig:
    path = files.path / "config.json"
    if not is_there(path):
        raise OperatorError(f"{path}: missing; give the folder of a complete checkpoint")
    fields = with_quantization_file(Fields(read_json(path), str(path)), files.path)
    architectures = fields.values.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise fields.error('architectures must name the model\'s class, such as ["LlamaForCausalLM"]')
    architecture = architectures[0]
    if not is_served(architecture) and (pooled or is_bidirectional(fields)):
        # A model saved without a head has the name of the class without one.
        architecture = re.sub("Model$", "ForCausalLM", architecture)
    family = family_of(architecture, str(path))
    config = as_saved(family.config_of(fields, architecture), files.safetensors)
    if family.images is not None and config.decoder.tower is not None and not pooled:  # pooled models have none
        processor = read_image_processor(files.path, needed=family.needs_processor)
        config = config.seeing(family.images(fields, processor, config))
    head = config.decoder.head
    if head is not None and head.tied and has_own_head(files.safetensors):
        config = config.with_own_head()
    config = replace(config, stored=read_quantization(fields, config), left_out=_left_out(fields, config))
    generation = files.path / "generation_config.json"
    if not is_there(generation):
        return config
    # Chat models often end a turn with a token that only this file names.
    more = Fields(read_json(generation), str(generation)).token_ids("eos_token_id", config.vocab_size)
    return replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + more)))


def _left_out(fields: Fields, config: ModelConfig) -> tuple[str, ...]:
    sees = config.decoder.tower is not None
    kinds = ("audio",) if sees else ("vision", "audio")
    towers = [name for name in kinds if fields.has(f"{name}_config")]
    return (*((towers_note(towers, sees=sees),) if towers else ()), *left_out(fields))
