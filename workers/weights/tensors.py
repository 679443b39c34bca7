"""The tensors that a checkpoint of a model must hold, with their shapes; checked before anything is packed."""

import re
from collections.abc import Collection

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.formats import units_of
from numaserve.workers.layers.names import TensorNames
from numaserve.workers.layers.stored import GGUF_BLOCKS
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.quantized.layouts import parts_of
from numaserve.workers.weights.quantized.parts import FLOAT_DTYPES, Part
from numaserve.workers.weights.source import RawTensor, TensorSource

Shape = tuple[int, ...]
# Scales for a quantized KV cache, whose type the operator chooses.
_CACHE_SCALES = re.compile(r"\.(([qkv]|kv|prob)_(scale|zero_point)|[qkv]_proj\.output_(scale|zero_point))$")


def check_tensors(source: TensorSource, config: ModelConfig) -> None:
    """Compare a checkpoint with its configuration; a checkpoint has all pipeline stages.

    Raises `OperatorError` naming tensors that are missing, that have another shape, or that nothing would use: a
    tensor left out silently would give wrong answers.
    """
    config = config.undivided or config
    found = source.names()
    names = config.names_in(found)
    plain, parts = expected_tensors(config, names)
    missing = [name for name in plain if name not in found]
    missing += [name for name, part in parts.items() if part.required and name not in found]
    unused = [
        name
        for name in found
        if name not in plain
        and name not in parts
        and not name.startswith(f"{names.head}.")
        and not _is_harmless(name, config, names.prefix)
        and not _is_zero_bias(name, source, parts)
    ]
    if missing:
        # The files are complete, or opening them would have failed: unused names show what they have instead.
        instead = f", and holds {_some(unused)} instead" if unused else ""
        raise OperatorError(
            f"the checkpoint lacks {_some(missing)}, which {config.architecture} needs as configured{instead}; "
            "serve a checkpoint whose tensors match its config.json"
        )
    if unused:
        raise OperatorError(
            f"the checkpoint holds {_some(unused)}, which {config.architecture} does not use as configured; "
            "this variant is not supported"
        )
    for name, shape in plain.items():
        # A matrix may be of any type that the source returns: types other than those of a GGUF file have parts.
        _check_plain(source.tensor(name), shape)
    for name, part in parts.items():
        if name in found:
            part.check(source.part(name))


def expected_tensors(config: ModelConfig, names: TensorNames) -> tuple[dict[str, Shape], dict[str, Part]]:
    """Return the tensors of numbers, and the parts of quantized matrices."""
    plain: dict[str, Shape] = {}
    parts: dict[str, Part] = {}
    for parameter in config.decoder.parameters():
        for source in parameter.sources:
            for unit in units_of(parameter):
                name = names.of(source, unit)
                stored = config.stored.get(source.named(unit)) if source.is_matrix else None
                if stored is None or stored.layout in GGUF_BLOCKS:
                    plain[f"{name}.weight" if source.is_matrix else name] = source.saved_shape
                else:
                    found = parts_of(stored, source.shape[0], source.shape[1])
                    parts.update({f"{name}.{suffix}": part for suffix, part in found.items()})
    return plain, parts


def _check_plain(tensor: RawTensor, shape: Shape) -> None:
    is_row = len(shape) == 1 or shape[0] == 1
    if tensor.shape != shape and not (is_row and _without_ones(tensor.shape) == _without_ones(shape)):
        raise OperatorError(
            f"{tensor.label} has shape {list(tensor.shape)}, but the configuration asks for {list(shape)}; "
            "fetch the checkpoint again"
        )
    if len(shape) != 2 and tensor.dtype not in FLOAT_DTYPES:
        raise OperatorError(
            f"{tensor.label} is {tensor.dtype}, but norms and biases must be {' or '.join(FLOAT_DTYPES)}; "
            "fetch the checkpoint again"
        )


def _without_ones(shape: Shape) -> Shape:
    """Return the dimensions that state how values lie. Vectors of Kimi Linear are published as [1, 1, n, 1]."""
    return tuple(size for size in shape if size != 1)


def _is_zero_bias(name: str, source: TensorSource, parts: Collection[str]) -> bool:
    """Return whether a tensor is a needless bias: AutoGPTQ gives every module a bias, of zeros where the model has
    none."""
    module = name.removesuffix(".bias")
    if module == name or not any(f"{module}.{suffix}" in parts for suffix in ("qweight", "weight_packed", "weight")):
        return False
    tensor = source.tensor(name)
    return len(tensor.shape) == 1 and not tensor.data.any()


def _is_harmless(name: str, config: ModelConfig, prefix: str) -> bool:
    unused = tuple(f"{prefix}layers.{config.num_layers + index}." for index in range(config.skipped_layers))
    if f".{name}".endswith(tuple(f".{buffer}" for buffer in config.buffers)) or _CACHE_SCALES.search(name):
        return True
    return name.startswith((*config.ignored_prefixes, *unused))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name[:100] for name in names[:3]) + more
