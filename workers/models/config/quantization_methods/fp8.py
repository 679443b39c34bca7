"""quant_method "fp8": e4m3 weights in blocks, as DeepSeek and Qwen publish them, or with a scale for a whole tensor."""

from collections.abc import Sequence

from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization_methods.rules import Modules, Rule, is_head, read_names

_MAX_BLOCK = 2**14


def fp8(fields: Fields) -> Rule:
    """Return the rule for modules. Raises `OperatorError` for another type than e4m3."""
    fields.refuse("fmt", "e4m3", "float8_e4m3fn")
    fields.refuse("activation_scheme", "dynamic", "static")
    if fields.has("weight_block_size"):
        block_rows, columns = read_block(fields, "weight_block_size")
        stored = Stored("fp8", "fp8", columns, block_rows=block_rows, scale="weight_scale_inv")
    else:
        stored = Stored("fp8", "fp8")
    skipped = Modules(read_names(fields, "modules_to_not_convert", "ignored_layers"))

    def rule(names: Sequence[str]) -> Stored | None:
        return None if is_head(names) or skipped.contains(names) else stored

    return rule


def read_block(fields: Fields, key: str) -> tuple[int, int]:
    """Return the rows and columns that share a scale."""
    rows, columns = (int(value) for value in fields.numbers(key, 2, 1, _MAX_BLOCK))
    if columns % 32:
        raise fields.error(f"{key}={[rows, columns]} is not supported; the number of columns must be a multiple of 32")
    return rows, columns
