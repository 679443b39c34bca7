"""Opens a checkpoint, and finds out without reading a weight whether it is the one that its configuration describes."""

from pathlib import Path

from numaserve.workers.models.config.gguf_names import GgufNames
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.gguf_source import GGUFSource
from numaserve.workers.weights.safetensors_source import SafetensorsSource
from numaserve.workers.weights.source import TensorSource
from numaserve.workers.weights.stacked_source import StackedSource, stacks_of
from numaserve.workers.weights.tensors import check_tensors


def open_source(path: Path, config: ModelConfig) -> TensorSource:
    """The tensors of the model folder or .gguf file at `path`. Raises `OperatorError` when it cannot be read."""
    if not path.is_dir():
        return GGUFSource(path, GgufNames(config.decoder, config.skipped_layers))
    source, stacks = SafetensorsSource(path), stacks_of(config.decoder)
    return StackedSource(source, stacks, config.prefixes) if stacks else source


def check_checkpoint(path: Path, config: ModelConfig) -> None:
    """Compare the tables of tensors at `path` with what the loader will ask for. Raises `OperatorError` for a file that
    is damaged, for a tensor that is missing, of another shape or type, or too much."""
    check_tensors(open_source(path, config), config)
