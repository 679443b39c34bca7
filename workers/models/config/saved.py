"""Parts of a model that checkpoints of one family have in one form or another, or lack, and names that they have for
them: found by the names of their tensors."""

from collections.abc import Collection
from dataclasses import replace

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.block import Block
from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.names import TensorNames
from numaserve.workers.layers.parameters import VectorParameter
from numaserve.workers.models.config.safetensors_files import SafetensorsFiles
from numaserve.workers.models.spec import ModelConfig


def as_saved(config: ModelConfig, files: SafetensorsFiles) -> ModelConfig:
    """Return the configuration with the names that the safetensors have, with experts in one tensor or apart, and with
    a layer for multi-token prediction (MTP) or without. Files that cannot be read change nothing; the loader reports
    them."""
    try:
        found = {name for file in files for name in file.tensors}
        names = config.names_in(found)
    except OperatorError:
        return config
    decoder = next((each for each in config.saved_as if _has_vectors(each, found, names)), config.decoder)
    blocks = tuple(_with_experts(block, found, names) for block in decoder.blocks)
    predictor = decoder.predictor
    if predictor is not None:
        predictor = replace(predictor, block=_with_experts(predictor.block, found, names))
    config = replace(config, decoder=replace(decoder, blocks=blocks, predictor=predictor))
    can_predict = any(name.startswith(saved) for _, saved in config.aliases for name in found)
    return config if can_predict else replace(config.unpredicted(), skipped_layers=0)


def _has_vectors(decoder: Decoder, found: Collection[str], names: TensorNames) -> bool:
    """Return whether all vectors of a decoder are among the tensors that are `found`. The names of matrices differ
    between published formats."""
    vectors = (each for each in decoder.parameters() if isinstance(each, VectorParameter))
    return all(names.of(source, 0) in found for vector in vectors for source in vector.sources)


def _with_experts(block: Block, found: Collection[str], names: TensorNames) -> Block:
    """Return a block whose experts are apart if their stack is not among the tensors that are `found`."""
    experts = block.mlp
    if not isinstance(experts, Experts) or all(names.named(stack) in found for stack in experts.stacks):
        return block
    return replace(block, mlp=experts.apart())
