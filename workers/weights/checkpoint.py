"""Opens a checkpoint, and checks without reading a weight that it matches its configuration."""

from dataclasses import replace

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.config.gguf_names import GgufNames
from numaserve.workers.models.config.safetensors_files import files_below
from numaserve.workers.models.load import ModelFiles, read_config, read_whole_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.formed_source import FormedSource, formed_sources
from numaserve.workers.weights.framed_source import FramedSource
from numaserve.workers.weights.head_source import HeadSource
from numaserve.workers.weights.safetensors_source import SafetensorsSource
from numaserve.workers.weights.source import TensorSource
from numaserve.workers.weights.stacked_source import StackedSource, stacks_of
from numaserve.workers.weights.tensors import check_tensors


def open_source(files: ModelFiles, config: ModelConfig) -> TensorSource:
    """Return the model's tensors. Raises `OperatorError` when they cannot be read."""
    config = config.undivided or config
    if files.gguf is not None:
        # For GGUF files only, see `models/load.py`.
        from numaserve.workers.weights.gguf_source import GGUFSource  # noqa: PLC0415

        sees = config.decoder.tower is not None
        model = files.gguf if sees else replace(files.gguf, projector=None)
        names = GgufNames(config.decoder, config.skipped_layers)
        found, frames = GGUFSource(model, names), names.frames()
        return _formed(FramedSource(found, frames) if frames else found, config)
    below = (file for folder in config.folders for file in files_below(files.path, folder))
    source: TensorSource = SafetensorsSource([*files.safetensors, *below])
    if config.decoder.token_head is not None:
        source = HeadSource(source, files.path)
    stacks = stacks_of(config.decoder)
    if stacks:
        source = StackedSource(source, stacks, config.names_in(source.names()))
    return _formed(source, config)


def _formed(source: TensorSource, config: ModelConfig) -> TensorSource:
    """Return the source with matrices in the form that the loader needs."""
    formed = formed_sources(config.decoder)
    if not formed:
        return source
    names = config.names_in(source.names())
    return FormedSource(source, {names.of(each, 0): each for each in formed})


def check_checkpoint(files: ModelFiles, config: ModelConfig) -> None:
    """Compare the model's tables of tensors with the tensors that the loader needs. Raises `OperatorError` for a
    damaged file, and for a tensor that is missing, unexpected, or of another shape or type."""
    check_tensors(open_source(files, config), config)


def can_predict(files: ModelFiles, *, weights: bool) -> bool:
    """Return whether a model has the layer that predicts the token after the next. With `weights`, the layer must also
    be in the checkpoint and match the configuration: quantized checkpoints often lack it, or have it in another format.
    Raises `OperatorError` for a configuration that cannot be read."""
    if read_whole_config(files).decoder.predictor is None:
        return False
    try:
        if weights:
            check_checkpoint(files, read_config(files, ModelSettings(mtp=True)))
    except OperatorError:
        return False
    return True
