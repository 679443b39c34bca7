"""Adapters in files: what is read of them, and what is refused, by name and with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.workers.adapters.describe import describe_adapter
from numaserve.workers.adapters.opened import open_adapter
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from safetensors.torch import load_file, save_file

from tests.support import checkpoints
from tests.support.lora import RandomAdapter, random_adapter, write_gguf_adapter

SETTINGS = ModelSettings(max_loras=1, max_lora_rank=8)
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture(scope="module")
def model() -> hf.PreTrainedModel:
    return checkpoints.random_model("llama-untied")


@pytest.fixture(scope="module")
def config(model: hf.PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_model_config(checkpoints.save(model, tmp_path_factory.mktemp("base")))


@pytest.fixture
def adapter(model: hf.PreTrainedModel) -> RandomAdapter:
    return random_adapter(model, rank=4)


def scales(folder: Path, config: ModelConfig) -> dict[str, float]:
    with open_adapter(folder, config, SETTINGS) as opened:
        return {name.removeprefix("model.layers."): each.scale for name, each in opened.files.updates.items()}


def test_an_adapter_is_described(adapter: RandomAdapter, config: ModelConfig, tmp_path: Path) -> None:
    found = describe_adapter(adapter.save(tmp_path / "a"), config, SETTINGS)
    assert (found.rank, found.matrices) == (4, 14)
    assert found.mean_rank == 4
    assert found.nbytes == (tmp_path / "a" / WEIGHTS).stat().st_size
    assert found.digest == describe_adapter(adapter.save(tmp_path / "b"), config, SETTINGS).digest
    adapter.save(tmp_path / "b", lora_alpha=9)
    assert found.digest != describe_adapter(tmp_path / "b", config, SETTINGS).digest


def test_the_mean_rank_counts_the_values_of_an_adapter(
    model: hf.PreTrainedModel, adapter: RandomAdapter, config: ModelConfig, tmp_path: Path
) -> None:
    some = random_adapter(model, rank=3, wanted=lambda name: name.endswith("o_proj"))
    values = [sum(each.numel() for pair in one.matrices.values() for each in pair) for one in (some, adapter)]
    found = describe_adapter(some.save(tmp_path), config, SETTINGS)
    assert found.mean_rank == pytest.approx(values[0] / (values[1] / adapter.rank))


def test_scales_and_ranks_follow_the_patterns_as_in_peft(
    adapter: RandomAdapter, config: ModelConfig, tmp_path: Path
) -> None:
    assert set(scales(adapter.save(tmp_path), config).values()) == {8 / 4}
    assert set(scales(adapter.save(tmp_path, use_rslora=True), config).values()) == {8 / 2}
    found = scales(adapter.save(tmp_path, alpha_pattern={"q_proj": 2, r".*\.1\.mlp\.up_proj": 40}), config)
    assert (found["0.self_attn.q_proj"], found["1.mlp.up_proj"], found["0.mlp.up_proj"]) == (0.5, 10.0, 2.0)
    # A rank that only the pattern states: A has the other shape where they disagree.
    folder = adapter.save(tmp_path, r=2, rank_pattern={r"\w+": 4})
    assert set(scales(folder, config).values()) == {2.0}
    with pytest.raises(
        OperatorError, match=r"has an A of shape \[4, \d+\], and adapter_config\.json gives it the rank 2"
    ):
        scales(adapter.save(tmp_path, r=2), config)


def test_names_of_older_files_and_of_nested_models_are_known(
    adapter: RandomAdapter, config: ModelConfig, tmp_path: Path
) -> None:
    folder = adapter.save(tmp_path / "nested", prefix="model.language_model.")
    tensors = load_file(folder / WEIGHTS)
    nested = {name.replace("language_model.model.", "language_model."): each for name, each in tensors.items()}
    save_file(nested, folder / WEIGHTS)
    assert describe_adapter(folder, config, SETTINGS).matrices == 14
    folder = adapter.save(tmp_path / "old")
    old = {name.replace(".weight", ".default.weight"): each for name, each in load_file(folder / WEIGHTS).items()}
    save_file(old, folder / WEIGHTS)
    assert describe_adapter(folder, config, SETTINGS).matrices == 14


def _tensor(name: str, *shape: int) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: torch.ones(shape)})


_AT = "base_model.model.model.layers.0.self_attn.q_proj"


def _copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the matrices of a module under a name that another kind of model has for it."""
    names = [f"{_AT}.lora_{side}.weight" for side in "AB"]
    return {name.replace(".model.layers.", ".model.language_model.layers."): tensors[name] + 1 for name in names}


def _damage(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{_AT}.lora_A.weight"][0, 0] = float("nan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_tensor("base_model.model.lm_head.lora_A.weight", 4, 96), "'lm_head' lacks one of lora_A and lora_B"),
        (_tensor(f"{_AT}.lora_magnitude_vector", 96), "is of DoRA, which is not supported"),
        (_tensor(f"{_AT}.lora_B.bias", 96), "is a bias, which is not supported"),
        (_tensor("base_model.model.model.embed_tokens.lora_embedding_A", 4, 9), "changes the embeddings"),
        (_tensor("base_model.model.score.weight", 2, 96), "is neither lora_A nor lora_B of a module"),
        (_damage, "values that are not finite numbers"),
        (lambda tensors: tensors.clear(), "holds no tensor"),
        (_tensor(f"{_AT}.lora_A.default.weight", 4, 96), "is in the file under two names"),
        (lambda tensors: tensors.update(_copied(tensors)), "q_proj' is in the adapter under two names"),
    ],
)
def test_tensors_that_cannot_be_applied_are_refused(
    adapter: RandomAdapter,
    config: ModelConfig,
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], None],
    message: str,
) -> None:
    folder = adapter.save(tmp_path)
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(OperatorError, match=message):
        describe_adapter(folder, config, SETTINGS)


@pytest.mark.parametrize(
    ("module", "shapes", "message"),
    [
        ("lm_head", ((4, 96), (checkpoints.VOCAB, 4)), "is an embedding, an output head, a router"),
        ("model.layers.7.self_attn.q_proj", ((4, 96), (96, 4)), "is not a matrix of this model, LlamaForCausalLM"),
        ("model.vision_tower.layers.0.self_attn.q_proj", ((4, 96), (96, 4)), "leave vision towers out"),
        ("model.layers.0.self_attn.q_proj", ((4, 64), (96, 4)), "the adapter is for another base model"),
        ("model.layers.0.self_attn.q_proj", ((4, 96), (96, 5)), "the adapter is for another base model"),
    ],
)
def test_modules_that_cannot_be_updated_are_refused(
    config: ModelConfig, tmp_path: Path, module: str, shapes: tuple[tuple[int, int], tuple[int, int]], message: str
) -> None:
    a, b = (torch.ones(shape) for shape in shapes)
    folder = RandomAdapter(4, 8, False, {module: (a, b)}).save(tmp_path)
    with pytest.raises(OperatorError, match=message):
        describe_adapter(folder, config, SETTINGS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; only adapters of the type LORA"),
        ({"use_dora": True}, "use_dora is set: DoRA rescales"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set: whole modules are replaced"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "routed experts, which is not supported"),
        ({"bias": "all"}, "bias is set"),
        ({"init_lora_weights": "pissa_niter_16"}, "a base model whose matrices were changed"),
        ({"lora_alpha": float("inf")}, r"lora_alpha must be from -3e\+38 to 3e\+38"),
        ({"lora_alpha": 10**400}, "lora_alpha must be from"),
        ({"alpha_pattern": {"q_proj": 10**400}}, "alpha_pattern: q_proj must be from"),
        ({"alpha_pattern": ["q_proj"]}, "alpha_pattern must be an object"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern: q_proj must be an integer from 1"),
        ({"rank_pattern": {"q_proj": -4}, "use_rslora": True}, "rank_pattern: q_proj must be an integer from 1"),
        ({"alpha_pattern": {"(a*)*": 1}}, "none of them a group"),
        ({"alpha_pattern": {"a*b*c*": 1}}, "that repeat something"),
        ({"alpha_pattern": {"(": 1}}, "which is not valid"),
        ({"r": 0}, "r must be an integer from 1"),
    ],
)
def test_configurations_that_cannot_be_applied_are_refused(
    adapter: RandomAdapter, config: ModelConfig, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(OperatorError, match=message):
        describe_adapter(adapter.save(tmp_path, **fields), config, SETTINGS)


def test_a_rank_above_the_limit_is_refused(model: hf.PreTrainedModel, config: ModelConfig, tmp_path: Path) -> None:
    folder = random_adapter(model, rank=9).save(tmp_path, dtype=torch.bfloat16)
    with pytest.raises(OperatorError, match="has the rank 9; the server has memory for ranks from 1 to 8"):
        describe_adapter(folder, config, SETTINGS)


def test_huge_and_damaged_files_are_refused(adapter: RandomAdapter, config: ModelConfig, tmp_path: Path) -> None:
    folder = adapter.save(tmp_path / "zeros")
    with (folder / WEIGHTS).open("wb") as file:
        os.truncate(file.fileno(), 10 << 30)
    with pytest.raises(OperatorError, match=r"has 10737418240 bytes, and an adapter of this model .* at most"):
        describe_adapter(folder, config, SETTINGS)
    with (folder / WEIGHTS).open("r+b") as file:
        os.truncate(file.fileno(), 1 << 20)
    with pytest.raises(OperatorError, match=rf"{folder / WEIGHTS}: not a valid safetensors file"):
        describe_adapter(folder, config, SETTINGS)
    (folder / CONFIG).write_text(json.dumps([]))
    with pytest.raises(OperatorError, match="not a JSON object"):
        describe_adapter(folder, config, SETTINGS)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    adapter.save(tmp_path / "other")
    (tmp_path / "other" / CONFIG).replace(folder / CONFIG)
    with pytest.raises(OperatorError, match="pickled weights can run code and are never opened"):
        describe_adapter(folder, config, SETTINGS)
    with pytest.raises(OperatorError, match=r"not an adapter; give a folder that holds adapter_config\.json"):
        describe_adapter(tmp_path / "nothing", config, SETTINGS)


def pair(name: str, rows: int, columns: int, rank: int = 4, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {
        f"{name}.weight.lora_a": np.ones((rank, columns), dtype),
        f"{name}.weight.lora_b": np.ones((rows, rank), dtype),
    }


_Q = "blk.0.attn_q"


@pytest.mark.parametrize(
    ("tensors", "fields", "message"),
    [
        (pair(_Q, 96, 96), {"kind": "control_vector"}, "not a LoRA adapter"),
        (pair(_Q, 96, 96), {"alpha": float("inf")}, r"adapter\.lora\.alpha must be a number of at most 3e\+38"),
        (pair(_Q, 96, 96, dtype=np.float64), {}, "has the type F64; adapters must be F32, F16 or BF16"),
        (pair(_Q, 96, 96, rank=0), {}, "is not one of a pair of matrices"),
        ({f"{_Q}.weight.lora_b": np.ones((96, 4), np.float32)}, {}, "is not one of a pair of matrices"),
        (pair("token_embd", checkpoints.VOCAB, 96), {}, "is an embedding, an output head, a router"),
    ],
)
def test_gguf_adapters_that_cannot_be_applied_are_refused(
    config: ModelConfig, tmp_path: Path, tensors: dict[str, np.ndarray], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(OperatorError, match=message):
        describe_adapter(write_gguf_adapter(tmp_path / "a.gguf", tensors, **fields), config, SETTINGS)


def test_an_adapter_that_updates_a_part_of_a_tensor_is_refused(tmp_path: Path) -> None:
    base = checkpoints.random_model("qwen3_next")
    config = load_model_config(checkpoints.save(base, tmp_path / "base"))
    rows = base.config.linear_num_value_heads * base.config.linear_value_head_dim
    # The folder has these rows in one tensor with those of q, k and v, which GGUF files have apart.
    file = write_gguf_adapter(tmp_path / "a.gguf", pair("blk.0.attn_gate", rows, base.config.hidden_size))
    with pytest.raises(OperatorError, match="the adapter updates the parts of this tensor differently"):
        describe_adapter(file, config, SETTINGS)
