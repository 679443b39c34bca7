"""All families, and which of them runs an architecture. A new family is a file beside the others and a line here."""

from __future__ import annotations

from numaserve.workers.errors import OperatorError
from numaserve.workers.models import (
    deepseek_v2,
    deepseek_v3,
    gemma2,
    gemma3,
    gpt_oss,
    llama,
    mistral,
    mixtral,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
)
from numaserve.workers.models.family import Family

_MODULES = (
    llama,
    mistral,
    mixtral,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    gemma2,
    gemma3,
    phi3,
    deepseek_v2,
    deepseek_v3,
    gpt_oss,
)
_OF_GGUF = (gpt_oss.GGUF_FAMILY,)  # whose GGUF files have other tensors than the checkpoints of that architecture
FAMILIES: dict[str, Family] = {family.name: family for family in (*(module.FAMILY for module in _MODULES), *_OF_GGUF)}
ARCHITECTURES: dict[str, Family] = {
    architecture: module.FAMILY for module in _MODULES for architecture in module.FAMILY.architectures
}
GGUF_ARCHITECTURES: dict[str, Family] = {
    family.gguf_architecture: family for family in FAMILIES.values() if family.gguf_architecture is not None
}


def family_of(architecture: str, where: str, known: dict[str, Family]) -> Family:
    """The family that runs `architecture`, looked up in one of the tables above.

    Raises `OperatorError` with the list of those supported.
    """
    if architecture not in known:
        raise OperatorError(
            f"{where}: architecture {architecture[:100]!r} is not supported; supported are: {', '.join(sorted(known))}"
        )
    return known[architecture]
