"""quant_method "modelopt": NVIDIA's Model Optimizer.

`quant_algo` names the format of all modules but `ignore`, or in "MIXED_PRECISION" `quantized_layers` has a `quant_algo`
for each quantized module. hf_quant_config.json, which older checkpoints have instead of a field of config.json, has the
same settings within `quantization`, with `exclude_modules` in place of `ignore`. Both lists may have wildcards.
"""

import fnmatch
from collections.abc import Callable, Sequence
from itertools import accumulate

from numaserve.workers.layers.stored import Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.quantization_methods.rules import Modules, Rule, pattern, read_names

_FORMATS: dict[str, Stored] = {
    "FP8": Stored("fp8", "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": Stored("fp8", "fp8"),
    "FP8_PB_WO": Stored("fp8", "fp8", 128, block_rows=128),
    "MXFP8": Stored("mxfp8", "fp8", 32),
    "NVFP4": Stored("modelopt_nvfp4", "nvfp4", bits=4),
    "W4A16_NVFP4": Stored("modelopt_nvfp4", "nvfp4", bits=4),
}
_NVFP4_GROUP = 16
_MIXED = "MIXED_PRECISION"
_FIXED_INPUTS = ("FP8", "NVFP4")  # formats with fixed scales of activations


def modelopt(fields: Fields) -> Rule:
    """Return the rule for modules. Raises `OperatorError` for another format."""
    settings = modelopt_settings(fields)
    is_excluded = _matcher(settings, read_names(settings, "ignore", "exclude_modules"))
    if _algorithm(settings) != _MIXED:
        stored = _format(settings, _MIXED)
        return lambda names: None if is_excluded(names) else stored
    layers = settings.child("quantized_layers")
    single = {name: _format(layers.child(name)) for name in layers.values}
    if not single:
        raise settings.error("quantized_layers is missing")

    def rule(names: Sequence[str]) -> Stored | None:
        if is_excluded(names):
            return None
        return next((single[part] for name in names for part in _ancestry(name) if part in single), None)

    return rule


def modelopt_settings(fields: Fields) -> Fields:
    """Return the fields with the settings, which may be nested."""
    return fields.child("quantization") if fields.has("quantization") else fields


def has_fixed_inputs(settings: Fields) -> bool:
    """Return whether the format has fixed scales of activations."""
    layers = settings.child("quantized_layers")
    return any(_algorithm(each) in _FIXED_INPUTS for each in (settings, *map(layers.child, layers.values)))


def _algorithm(settings: Fields) -> str:
    return settings.text("quant_algo", "none").upper()


def _format(settings: Fields, *others: str) -> Stored:
    algorithm = _algorithm(settings)
    if "NVFP4" in algorithm:
        settings.refuse("group_size", _NVFP4_GROUP)
    if algorithm not in _FORMATS:
        supported = ", ".join([*_FORMATS, *others])
        raise settings.error(f"quant_algo={algorithm[:40]!r} is not supported; supported values: {supported}")
    return _FORMATS[algorithm]


def _matcher(settings: Fields, texts: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    """Return a matcher of `texts`: names of modules, and names with wildcards. Almost all wildcards are a star at the
    end, of hundreds of texts that each of tens of thousands of experts is compared with."""
    modules = Modules(text for text in texts if not _has_wildcard(text))
    begins = tuple(text[:-1] for text in texts if _is_beginning(text))
    other = (text for text in texts if _has_wildcard(text) and not _is_beginning(text))
    patterns = [pattern(settings, fnmatch.translate(text)) for text in other]

    def matches(names: Sequence[str]) -> bool:
        if modules.contains(names) or any(name.startswith(begins) for name in names):
            return True
        return any(each.match(name) for each in patterns for name in names)

    return matches


def _is_beginning(text: str) -> bool:
    return text.endswith("*") and not _has_wildcard(text[:-1])


def _has_wildcard(text: str) -> bool:
    return any(letter in text for letter in "*?[")


def _ancestry(name: str) -> list[str]:
    """Return the modules that contain a module, the module itself first."""
    return list(accumulate(name.split("."), "{}.{}".format))[::-1]
