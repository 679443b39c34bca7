"""Reads a model's configuration from a Hugging Face folder or a GGUF file, without torch and without any weight."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from numaserve.workers.errors import OperatorError
from numaserve.workers.models.fields import Fields
from numaserve.workers.models.gguf_config import load_gguf_config
from numaserve.workers.models.quantization import read_quantization
from numaserve.workers.models.registry import ARCHITECTURES, family_of
from numaserve.workers.models.spec import ModelConfig, RopeConfig

__all__ = ["ModelConfig", "RopeConfig", "load_model_config"]

_MAX_JSON_BYTES = 16 * 2**20


def load_model_config(path: Path) -> ModelConfig:
    """The configuration of the model at `path`, a folder with config.json or a .gguf file.

    Nothing in the checkpoint is executed: an `auto_map` is ignored. Raises `OperatorError` when the file cannot be
    read, for an architecture or feature that is not supported, and for values out of range.
    """
    if path.is_dir():
        return _load_hf_config(path)
    if not path.is_file():
        raise OperatorError(f"{path}: there is no such file or folder; give a model folder, a .gguf file or a hub id")
    if path.suffix != ".gguf":
        raise OperatorError(f"{path}: not a model; give the folder that holds config.json, or a .gguf file")
    return load_gguf_config(path)


def _load_hf_config(folder: Path) -> ModelConfig:
    path = folder / "config.json"
    fields = Fields(_read_json(path), str(path))
    architectures = fields.values.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise fields.error('architectures must name the model\'s class, such as ["LlamaForCausalLM"]')
    architecture = architectures[0]
    family = family_of(architecture, str(path), ARCHITECTURES)
    config = family.configure(fields, architecture)
    config = replace(config, stored=read_quantization(fields, config, family))
    generation = folder / "generation_config.json"
    if not generation.is_file():
        return config
    # Chat models often end a turn with a token that only this file names.
    more = Fields(_read_json(generation), str(generation)).token_ids("eos_token_id", config.vocab_size)
    return replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + more)))


def _read_json(path: Path) -> dict[str, object]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise OperatorError(f"{path}: larger than {_MAX_JSON_BYTES} bytes, this is not a model's configuration")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise OperatorError(
            f"{path}: cannot be read ({error.strerror}); give the folder of a whole checkpoint"
        ) from error
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"{path}: not valid JSON ({error}); fetch the checkpoint again") from error
    if not isinstance(value, dict):
        raise OperatorError(f"{path}: must hold a JSON object")
    return value
