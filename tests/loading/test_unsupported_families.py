"""The answer to a model of a family that is not supported."""

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.registry import families, family_of

NO_FAMILY = ("MambaForCausalLM", "MiniCPM3ForCausalLM", "T5EncoderModel", "FalconForCausalLM", "x" * 1000)


@pytest.mark.parametrize(
    ("architecture", "near"),
    [
        ("Qwen4ExpForCausalLM", ["Qwen3NextForCausalLM", "Qwen3MoeForCausalLM"]),
        ("Qwen3_6ForCausalLM", ["Qwen3_5For"]),
        ("Qwen2VLForConditionalGeneration", ["Qwen2ForCausalLM"]),
        ("Qwen3OmniMoeForConditionalGeneration", ["Qwen3MoeForCausalLM"]),
        ("Gemma3nForConditionalGeneration", ["Gemma3For"]),
        ("Llama5ForCausalLM", ["LlamaForCausalLM", "Llama4ForConditionalGeneration"]),
        ("KimiVLForConditionalGeneration", ["KimiK25ForConditionalGeneration"]),
        ("GraniteSpeechForConditionalGeneration", ["GraniteForCausalLM"]),
        ("MiniMaxText01ForCausalLM", ["MiniMaxM2ForCausalLM"]),
    ],
)
def test_supported_architectures_of_the_same_family_are_named(architecture: str, near: list[str]) -> None:
    said, named = refusal(architecture)
    assert all(name in said for name in near)
    assert 0 < len(named) <= 3
    assert {name[:4] for name in named} == {architecture[:4]}


@pytest.mark.parametrize("architecture", NO_FAMILY)
def test_no_architecture_is_named_where_none_is_of_the_same_family(architecture: str) -> None:
    said, named = refusal(architecture)
    assert "similar" not in said
    assert not named


def refusal(architecture: str) -> tuple[str, list[str]]:
    """Return the message, and the supported architectures that it names."""
    with pytest.raises(OperatorError) as caught:
        family_of(architecture, "config.json")
    said = str(caught.value)
    assert said.startswith(f"config.json: architecture {architecture[:100]!r} is not supported")
    assert said.endswith("use a model of a family listed in docs/models.md")
    return said, [name for family in families().values() for name in family.architectures if name in said]
