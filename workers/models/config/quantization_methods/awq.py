"""quant_method "awq": AutoAWQ, and other tools that write its "gemm" version."""

from collections.abc import Sequence

from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization_methods.gptq import grouped
from numaserve.workers.models.config.quantization_methods.rules import Rule, is_head, read_bits, read_group, read_names


def awq(fields: Fields) -> Rule:
    """Return the rule for modules. Raises `OperatorError` for another version than "gemm"."""
    version_key = "version" if fields.has("version") else "format"
    version = fields.text(version_key, "gemm").lower()
    if version != "gemm":
        raise fields.error(f"{version_key}={version[:40]!r} is not supported; the supported version is gemm")
    bits = read_bits(fields, "bits" if fields.has("bits") else "w_bit", 4)
    group = read_group(fields, "group_size" if fields.has("group_size") else "q_group_size")
    stored = grouped("awq", bits, group, symmetric=not fields.flag("zero_point", True))
    skipped = read_names(fields, "modules_to_not_convert")

    def rule(names: Sequence[str]) -> Stored | None:
        # AutoAWQ leaves a module as it is if its name contains one of these.
        if is_head(names) or any(each in name for name in names for each in skipped):
            return None
        return stored

    return rule
