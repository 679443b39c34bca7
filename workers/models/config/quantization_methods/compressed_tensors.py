"""quant_method "compressed-tensors": the format of llm-compressor.

`config_groups` have a scheme for the modules that their `targets` name: a class ("Linear"), a module, or "re:" and a
pattern; `ignore` names modules in the same way. From quantization/quant_config.py and quant_args.py of
compressed_tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from numaserve.workers.layers.stored import REQUANTIZED_GROUP, ROW, CodeFormat, Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization_methods.fp8 import read_block
from numaserve.workers.models.config.quantization_methods.gptq import CODES
from numaserve.workers.models.config.quantization_methods.rules import Rule, pattern, read_bits, read_group, read_names

_PACKED, _INTEGERS, _FLOATS, _NAIVE = "pack-quantized", "int-quantized", "float-quantized", "naive-quantized"
_MXFP4, _NVFP4, _MXFP8 = "mxfp4-pack-quantized", "nvfp4-pack-quantized", "mxfp8-quantized"
_FORMATS = {name: name for name in (_PACKED, _INTEGERS, _FLOATS, _NAIVE, _MXFP4, _NVFP4, _MXFP8, "mixed-precision")}
_LINEAR = "Linear"
_SMALL_FLOATS = {  # by format: bits, the strategy and the size of groups, and the matrix
    _MXFP4: (4, "group", 32, Stored("mxfp4_packed", "mxfp4", 32, bits=4)),
    _NVFP4: (4, "tensor_group", 16, Stored("nvfp4_packed", "nvfp4", bits=4)),
    _MXFP8: (8, "group", 32, Stored("mxfp8", "fp8", 32)),
}
_REORDERED = ("group", "dynamic")  # not a set: the value that is looked up may be of any type

Matcher = Callable[[Sequence[str]], bool]


def compressed_tensors(fields: Fields) -> Rule:
    """Return the rule for modules. Raises `OperatorError` for sparsity, transforms, and codes of other widths."""
    _refuse_unsupported(fields)
    default = fields.choice("format", _FORMATS, _PACKED)
    groups = fields.child("config_groups")
    named: list[tuple[Matcher, Stored]] = []
    of_class: list[Stored] = []
    for name in groups.values:
        scheme = groups.child(name)
        stored = _read_scheme(scheme, scheme.choice("format", _FORMATS, default))
        targets = read_names(scheme, "targets")
        if not targets:
            raise scheme.error("targets is missing")
        named.append((_matcher(scheme, targets), stored))
        if _LINEAR in targets:
            of_class.append(stored)
    if not named:
        raise fields.error("config_groups is missing")
    ignored = read_names(fields, "ignore")
    is_ignored = _matcher(fields, ignored)

    def rule(names: Sequence[str]) -> Stored | None:
        if _LINEAR in ignored or is_ignored(names):
            return None
        # A name or a pattern takes precedence over a class.
        found = (stored for matches, stored in named if matches(names))
        return next(found, of_class[0] if of_class else None)

    return rule


def _refuse_unsupported(fields: Fields) -> None:
    sparsity = fields.child("sparsity_config")
    if sparsity.values:
        sparsity.refuse("format", "dense")
    if fields.child("transform_config").values.get("config_groups"):
        raise fields.error("transform_config is not supported; use a checkpoint without transforms")


def _matcher(fields: Fields, texts: Sequence[str]) -> Matcher:
    """Return a matcher of `texts`: names of modules, and patterns after "re:"."""
    modules = frozenset(texts)
    patterns = [pattern(fields, text.removeprefix("re:")) for text in texts if text.startswith("re:")]

    def matches(names: Sequence[str]) -> bool:
        return not modules.isdisjoint(names) or any(each.match(name) for each in patterns for name in names)

    return matches


def _read_scheme(scheme: Fields, format: str) -> Stored:
    scheme.refuse("output_activations")
    weights = scheme.child("weights")
    weights.refuse("dynamic", False)
    # Checkpoints that ask for activations of 4 bits get finer ones, as those that ask for e4m3 do.
    quantized_input = _reads_quantized_input(
        scheme.child("input_activations"), (4, 8) if format in _SMALL_FLOATS else (8,)
    )
    if format in _SMALL_FLOATS:
        return _small_floats(weights, format)
    if weights.text("type", "int") == "float":
        return _floats(weights, format)
    bits = read_bits(weights, "num_bits", 4, 8)
    symmetric = weights.flag("symmetric", True)
    group = _group(weights)
    if format == _PACKED:
        stored = Stored("packed", CODES[bits], group, bits=bits, symmetric=symmetric)
        if weights.values.get("actorder") in _REORDERED and group != ROW:
            return replace(stored, native="int8_group", group=REQUANTIZED_GROUP, reordered=True, source_group=group)
        return stored.regrouped()
    if format not in (_INTEGERS, _NAIVE):
        raise weights.error(
            f"{bits}-bit integers in format {format!r} are not supported; supported formats: {_PACKED}, {_INTEGERS}"
        )
    # Groups quantize the activations more finely, which a scheme without quantized activations may expect.
    native: CodeFormat = "int8" if symmetric and group == ROW and quantized_input else "int8_group"
    # Codes of 4 bits are a byte each here.
    return Stored("int8", native, group, symmetric=symmetric).regrouped()


def _small_floats(weights: Fields, format: str) -> Stored:
    bits, strategy, group, stored = _SMALL_FLOATS[format]
    read_bits(weights, "num_bits", bits)
    for key, only in (("type", "float"), ("symmetric", True), ("strategy", strategy), ("group_size", group)):
        weights.refuse(key, only)
    return stored


def _floats(weights: Fields, format: str) -> Stored:
    read_bits(weights, "num_bits", 8)
    if format not in (_FLOATS, _NAIVE):
        raise weights.error(f"floats in format {format!r} are not supported; the supported format is {_FLOATS}")
    weights.refuse("symmetric", True)
    if weights.text("strategy", "tensor") == "block":
        block_rows, columns = read_block(weights, "block_structure")
        return Stored("fp8", "fp8", columns, block_rows=block_rows)
    return Stored("fp8", "fp8", _group(weights)).regrouped()


def _group(weights: Fields) -> int:
    default = "group" if weights.has("group_size") else "tensor"
    in_groups = weights.choice("strategy", {"tensor": False, "channel": False, "group": True}, default)
    return read_group(weights, "group_size") if in_groups else ROW


def _reads_quantized_input(activations: Fields, bits: tuple[int, ...]) -> bool:
    if not activations.values:
        return False
    read_bits(activations, "num_bits", *bits)
    return True
