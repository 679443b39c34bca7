"""The answer to a model of a family that is not supported."""

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.registry import families, family_of


@pytest.mark.parametrize(
    ("architecture", "near"),
    [
        ("Qwen4ExpForCausalLM", ["Qwen3NextForCausalLM", "Qwen3MoeForCausalLM", "Qwen2MoeForCausalLM"]),
        ("Qwen3_6ForCausalLM", ["Qwen3_5For", "Qwen3ForCausalLM", "Qwen3_5MoeForConditionalGeneration"]),
        ("GemmaForCausalLM", ["Gemma3For", "Gemma2ForCausalLM"]),
        ("Llama5ForCausalLM", ["LlamaForCausalLM", "Llama4ForConditionalGeneration"]),
        ("BertModel", []),
        ("FalconForCausalLM", []),
        ("x" * 1000, []),
    ],
)
def test_the_nearest_supported_architectures_are_named_and_no_others(architecture: str, near: list[str]) -> None:
    with pytest.raises(OperatorError) as caught:
        family_of(architecture, "config.json")
    said = str(caught.value)
    assert said.startswith(f"config.json: architecture {architecture[:100]!r} is not supported")
    assert said.endswith("use a model of a family listed in docs/models.md")
    assert all(name in said for name in near)
    named = [name for family in families().values() for name in family.architectures if name in said]
    assert len(named) == len(near) <= 3
