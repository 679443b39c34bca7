"""Parts of a model that checkpoints of one family have in one form or another, or lack, and names that they have for
them: found by the names of their tensors."""

from collections.abc import Collection
from dataclasses import replace

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.block import Block
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.layer import Layer
from numaserve.workers.layers.names import TensorNames
from numaserve.workers.layers.parameters import VectorParameter
from numaserve.workers.models.config.safetensors_files import SafetensorsFiles
from numaserve.workers.models.spec import ModelConfig


def as_saved(config: ModelConfig, files: SafetensorsFiles) -> ModelConfig:
    """Return the configuration with the names that the safetensors have, with experts in one tensor or apart, and with
    a layer for multi-token prediction (MTP) or without. Files that cannot be read change nothing; the loader reports
    them."""
    if not (config.aliases or config.saved_as or any(isinstance(each.mlp, Experts) for each in config.decoder.blocks)):
        return config
    try:
        tensors = {name for file in files for name in file.tensors}
        names = config.names_in(tensors)
    except OperatorError:
        return config
    found = tensors | {name.rpartition(".")[0] for name in tensors}
    decoder = next((each for each in config.saved_as if _has_vectors(each, found, names)), config.decoder)
    blocks = tuple(_with_experts(block, found, names) for block in decoder.blocks)
    predictor = decoder.predictor
    if predictor is not None:
        predictor = replace(predictor, block=_with_experts(predictor.block, found, names))
    config = replace(config, decoder=replace(decoder, blocks=blocks, predictor=predictor))
    if not config.aliases:
        return config
    of_others = tuple(saved for _, saved in config.aliases if saved not in config.tower_prefixes)
    if config.decoder.tower is not None and not _has_vectors(config.decoder.tower, found, names):
        config = config.text_only()  # some publish the language model alone, with the whole config.json
    can_predict = any(name.startswith(of_others) for name in tensors)
    return config if can_predict else replace(config.unpredicted(), skipped_layers=0)


def _has_vectors(layer: Layer, found: Collection[str], names: TensorNames) -> bool:
    """Return whether all vectors of a layer are among the tensors that are `found`. The names of matrices differ
    between published formats."""
    vectors = (each for each in layer.parameters() if isinstance(each, VectorParameter))
    return all(names.of(source, 0) in found for vector in vectors for source in vector.sources)


def _with_experts(block: Block, found: Collection[str], names: TensorNames) -> Block:
    """Return a block whose experts are apart if they are so among the tensors and modules that are `found`.

    Quantizers take the stacks of transformers apart and name the matrices as in MLPs, whatever the model's authors
    named them.
    """
    experts = block.mlp
    if not isinstance(experts, Experts) or _has_experts(experts, found, names):
        return block
    apart = experts.apart()
    return replace(block, mlp=apart) if _has_experts(apart, found, names) else block


def _has_experts(experts: Experts, found: Collection[str], names: TensorNames) -> bool:
    """Return whether the matrices of experts, or of the first one, are among the tensors and modules `found`."""
    declared = experts.stacks or {source.named(0) for source in (*experts.gate_up.sources, *experts.down.sources)}
    return all(names.named(each) in found for each in declared)
