"""Opens a checkpoint, and finds out without reading a weight whether it is the one that its configuration describes."""

from __future__ import annotations

from pathlib import Path

from numaserve.workers.models.registry import FAMILIES
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.fused_experts import FusedExperts
from numaserve.workers.weights.gguf_source import GGUFSource
from numaserve.workers.weights.safetensors_source import SafetensorsSource
from numaserve.workers.weights.source import TensorSource
from numaserve.workers.weights.tensors import check_tensors, find_prefix


def open_source(path: Path, config: ModelConfig) -> TensorSource:
    """The tensors of the model folder or .gguf file at `path`. Raises `OperatorError` when it cannot be read."""
    family = FAMILIES[config.family]
    if not path.is_dir():
        return GGUFSource(path, family)
    source = SafetensorsSource(path)
    if config.moe is None or not family.moe_names.fused:
        return source
    return FusedExperts(source, family.moe_names, config.moe.num_experts)


def check_checkpoint(path: Path, config: ModelConfig) -> None:
    """Compare the tables of tensors at `path` with what the loader will ask for. Raises `OperatorError` for a file that
    is damaged, for a tensor that is missing, of another shape or type, or too much."""
    source = open_source(path, config)
    family = FAMILIES[config.family]
    check_tensors(source, config, family, find_prefix(source.names(), family))
