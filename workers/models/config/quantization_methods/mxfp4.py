"""quant_method "mxfp4": experts as OpenAI publishes gpt-oss's; everything else is left as it is."""

from collections.abc import Sequence

from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization_methods.rules import Rule, pattern, read_names

_EXPERTS = ".experts."
_WHOLE_PART = r"(?![^.])"  # matches only at the end of a part of a name


def mxfp4(fields: Fields) -> Rule:
    """Return the rule for modules. Raises `OperatorError` for patterns that are too complex."""
    stored = Stored("gpt_oss", "mxfp4", 32, bits=4)
    skipped = [pattern(fields, f"(?:{text}){_WHOLE_PART}") for text in read_names(fields, "modules_to_not_convert")]

    def rule(names: Sequence[str]) -> Stored | None:
        if not any(_EXPERTS in name for name in names):
            return None
        return None if any(each.match(name) for each in skipped for name in names) else stored

    return rule
