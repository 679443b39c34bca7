"""The configuration of an adapter as PEFT writes it, adapter_config.json."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numaserve.workers.adapters.low_rank import MAX_ALPHA
from numaserve.workers.models.config.fields import Fields

# Fields of adapters that do more than add a low-rank matrix to some matrices, with what they do. A value that is false,
# empty or null turns each off.
_MORE = {
    "use_dora": "DoRA rescales the rows of the matrices",
    "modules_to_save": "whole modules are replaced",
    "target_parameters": "parameters that are no modules are changed, such as those of routed experts",
    "trainable_token_indices": "embeddings of tokens are replaced",
    "layer_replication": "layers are repeated",
    "alora_invocation_tokens": "the adapter begins within the prompt",
    "lora_bias": "biases are changed",
    "use_qalora": "inputs are averaged in groups",
    "use_bdlora": "the matrices are block-diagonal",
    "arrow_config": "adapters are chosen for each token",
    "kasa_config": "singular values are rescaled",
    "monteclora_config": "the matrices are sampled",
    "megatron_config": "the modules are those of Megatron",
}
# Initialisations that subtract something from the matrices of the base model. Saved as they are, such adapters are for
# that changed model.
_CHANGED_BASES = ("pissa", "olora", "corda", "lora_ga", "loftq")
_MAX_RANK = 1 << 16
_MOST_PATTERNS = 4096
_MOST_CHARACTERS = 256
# Matching takes at most a power of the name's length: a pattern repeats few things, and no group.
_REPEATS = re.compile(r"[*+{?]")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_MOST_REPEATS = 2


@dataclass(frozen=True)
class PeftConfig:
    """The rank and the scale of each matrix."""

    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    by_root: bool  # alpha / sqrt(rank) instead of alpha / rank (rsLoRA; Kalajdzievski, 2023)

    def rank_of(self, module: str) -> int:
        """The rank of a module."""
        return self.rank_pattern.get(_pattern_of(self.rank_pattern, module), self.rank)

    def scale_of(self, module: str) -> float:
        """The factor of the update of a module."""
        alpha = self.alpha_pattern.get(_pattern_of(self.alpha_pattern, module), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def read_peft_config(values: dict[str, Any], path: Path) -> PeftConfig:
    """Return the configuration that has these `values` in the file at `path`. Raises `OperatorError` for an adapter of
    another kind, and for fields that are not of the right type."""
    fields = Fields(values, str(path))
    kind = values.get("peft_type")
    if kind != "LORA":
        raise fields.error(f"peft_type is {str(kind)[:100]!r}; only adapters of the type LORA are supported")
    for name, effect in _MORE.items():
        if values.get(name):
            raise fields.error(f"{name} is set: {effect}, which is not supported; train the adapter without {name}")
    if values.get("bias", "none") != "none":
        raise fields.error("bias is set: biases are changed, which is not supported; train the adapter with bias none")
    begun = values.get("init_lora_weights")
    if isinstance(begun, str) and begun.startswith(_CHANGED_BASES):
        raise fields.error(
            f"init_lora_weights is {begun[:100]!r}: the adapter is for a base model whose matrices were changed; save "
            "it with path_initial_model_for_weight_conversion"
        )
    ranks, alphas = _patterns(fields, "rank_pattern"), _patterns(fields, "alpha_pattern")
    return PeftConfig(
        rank=fields.integer("r", 1, _MAX_RANK),
        alpha=fields.number("lora_alpha", -MAX_ALPHA, MAX_ALPHA, 8),
        rank_pattern={key: ranks.integer(key, 1, _MAX_RANK) for key in ranks.values},
        alpha_pattern={key: alphas.number(key, -MAX_ALPHA, MAX_ALPHA) for key in alphas.values},
        by_root=bool(values.get("use_rslora", False)),
    )


def _patterns(fields: Fields, name: str) -> Fields:
    found = fields.child(name)
    if len(found.values) > _MOST_PATTERNS:
        raise fields.error(f"{name} must be an object with at most {_MOST_PATTERNS} names")
    for key in found.values:
        _check_pattern(fields, name, key)
    return found


def _check_pattern(fields: Fields, name: str, key: str) -> None:
    """Refuse patterns whose match could take very long: this process serves requests meanwhile."""
    repeats = len(_REPEATS.findall(key))
    if len(key) > _MOST_CHARACTERS or repeats > _MOST_REPEATS or _REPEATED_GROUP.search(key):
        raise fields.error(
            f"{name} has the pattern {key[:100]!r}; a pattern may have {_MOST_CHARACTERS} characters, and "
            f"{_MOST_REPEATS} of the signs * + {{ ? that repeat something, none of them a group"
        )
    try:
        re.compile(key)
    except re.error as error:
        raise fields.error(f"{name} has the pattern {key[:100]!r}, which is not valid ({error})") from error


def _pattern_of(patterns: Mapping[str, object], module: str) -> str:
    """Return the pattern that is for a module, as PEFT finds it: a whole name, or the end of one at a dot."""
    return next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module)), module)
