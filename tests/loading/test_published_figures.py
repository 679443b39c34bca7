"""Published figures belong to a model by its class and sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
from numaserve.configs import hosts
from numaserve.workers.bench.published import publications, published_for
from numaserve.workers.models.load import load_model_config

from tests.support.full_shapes import DEEPSEEK_R1, LLAMA_70B, QWEN3_235B


def figures_for(folder: Path, config: dict[str, Any]) -> list[tuple[str, str, str, float, float]]:
    """The figures of a model whose folder has a name that says nothing."""
    (folder / "config.json").write_text(json.dumps(config))
    return [
        (each.model, each.figures.weights, each.host, each.figures.ttft_ms, each.figures.tpot_ms)
        for each in published_for(load_model_config(folder))
    ]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (DEEPSEEK_R1, [("DeepSeek-R1", "int8", 1885, 68.0), ("DeepSeek-R1", "fp8", 2235, 77.7)]),
        (QWEN3_235B, [("Qwen3-235B-A22B", "int8", 1164, 51.8)]),
        (LLAMA_70B, [("R1-Distill-Llama-70B", "int8", 2638, 76.5)]),
    ],
    ids=["DeepSeek-R1", "Qwen3-235B", "Llama-70B"],
)
def test_a_model_is_known_by_its_sizes(
    tmp_path: Path, config: dict[str, Any], expected: list[tuple[str, str, float, float]]
) -> None:
    host = "2 x Xeon 6980P, MRDIMM-8800"
    assert figures_for(tmp_path, config) == [(name, weights, host, *rest) for name, weights, *rest in expected]


@pytest.mark.parametrize("changed", ["vocab_size", "hidden_size", "num_hidden_layers"])
def test_a_model_of_another_size_has_no_figures(tmp_path: Path, changed: str) -> None:
    # Twice: the sizes of heads still divide each other.
    assert figures_for(tmp_path, LLAMA_70B | {changed: 2 * LLAMA_70B[changed]}) == []


def test_a_model_of_another_class_has_no_figures(tmp_path: Path) -> None:
    assert figures_for(tmp_path, LLAMA_70B | {"architectures": ["MistralForCausalLM"]}) == []


def test_figures_are_of_hosts_that_have_a_name() -> None:
    found = {each.host for file in publications() for model in file.models for each in model.figures}
    assert found <= set(hosts())
