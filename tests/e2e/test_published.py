"""Quantized checkpoints, served as published, are as close to the weights that they stand for as their arithmetic
allows: that of transformers in bf16, and where activations are in int8 that of the same played in transformers."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.workers.interface.settings import ActivationDtype, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.program.handles import INTEGER_GROUPS

from tests.support import checkpoints
from tests.support.fake_quantization import play_inputs
from tests.support.families import row
from tests.support.kimi import linear_name
from tests.support.parity import Distance, served_scores, transformers_scores
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import (
    edit_config,
    save_kimi,
    save_mimo,
    save_published,
    save_qwen3_5,
    small_deepseek,
    small_granite_hybrid,
    small_hybrid,
    small_kimi,
    small_kimi_linear,
    small_lfm2,
    small_lfm2_moe,
    small_llama,
    small_mimo,
    small_qwen2_moe,
    small_qwen3_5,
    small_qwen3_5_moe,
)

ALLOWED = 1.15
POSITIONS = 400
TEXTS = [np.random.default_rng(0).integers(3, checkpoints.VOCAB, POSITIONS + 1).tolist()]

pytestmark = pytest.mark.spread("activations", "skipped")
with_activations = pytest.mark.parametrize("activations", get_args(ActivationDtype))


def assert_as_close_as_the_arithmetic(path: Path, model: hf.PreTrainedModel, activations: ActivationDtype) -> None:
    """`model` is changed: copies take long to make."""
    stored = load_model_config(path).stored
    matrix = stored.get("layers.0.self_attn.o_proj", next(iter(stored.values())))
    native, group = matrix.native, matrix.group or 128
    reference = transformers_scores(model, TEXTS)

    is_rounded = native == "int8" or (native in INTEGER_GROUPS and activations == "int8")
    narrow = (copy.deepcopy(model) if is_rounded else model).to(torch.bfloat16)
    in_bf16 = Distance.between(transformers_scores(narrow, TEXTS), reference)
    delta, disagreements = in_bf16.mean_delta, in_bf16.disagreements
    if is_rounded:
        unit = 0 if native == "int8" else min(group, 128)
        how: dict[str, Any] = {"group": unit, "head": "lm_head" in stored}
        played = transformers_scores(play_inputs(model, **how), TEXTS, how)
        rounded = Distance.between(played, reference)
        delta, disagreements = math.hypot(delta, rounded.mean_delta), max(disagreements, rounded.disagreements)
    found = Distance.between(served_scores(path, 2, TEXTS, WeightFormats(activations=activations)), reference)
    assert found.mean_delta <= ALLOWED * delta
    # A count: four standard deviations.
    assert found.disagreements <= disagreements + 4 * math.sqrt(disagreements)


@with_activations
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_published_layout_is_served(layout: str, activations: ActivationDtype, tmp_path: Path) -> None:
    model = small_llama()
    assert_as_close_as_the_arithmetic(save_published(model, tmp_path, layout), model, activations)


@with_activations
@pytest.mark.parametrize("layout", ["gptq asymmetric", "awq", "w4a16", "w8a8", "fp8 blocks", "modelopt nvfp4"])
def test_experts_are_served_as_published(layout: str, activations: ActivationDtype, tmp_path: Path) -> None:
    model = small_qwen2_moe()
    assert_as_close_as_the_arithmetic(save_published(model, tmp_path, layout), model, activations)


@pytest.mark.parametrize("layout", ["gptq", "awq", "w4a16", "w8a8", "fp8 blocks", "nvfp4"])
def test_latents_are_served_as_published(layout: str, tmp_path: Path) -> None:
    model = small_deepseek()
    assert_as_close_as_the_arithmetic(save_published(model, tmp_path, layout), model, "bf16")


@pytest.mark.parametrize("skipped", ["experts", "shared_experts"])
@pytest.mark.parametrize(
    ("layout", "activations"), [("awq", "bf16"), ("awq", "int8"), ("w8a8", "bf16"), ("fp8 blocks", "bf16")]
)
def test_routed_and_shared_experts_are_served_in_a_format_each(
    layout: str, activations: ActivationDtype, skipped: str, tmp_path: Path
) -> None:
    model = small_deepseek()
    path = save_published(model, tmp_path, layout, skip=lambda name: f".{skipped}." in name)
    ignored = {
        "modules_to_not_convert": [f"model.layers.1.mlp.{skipped}"],
        "ignore": ["lm_head", rf"re:.*\.{skipped}\."],
    }
    edit_config(path, quantization_config=LAYOUTS[layout].config | ignored)
    assert_as_close_as_the_arithmetic(path, model, activations)


def test_kimi_is_served_as_published(tmp_path: Path) -> None:
    model = small_kimi()
    stored = load_model_config(save_kimi(model, tmp_path)).stored
    assert {name.split(".")[2:4] == ["mlp", "experts"] for name in stored} == {True}
    assert {(each.native, each.group) for each in stored.values()} == {("int4", 32)}
    assert_as_close_as_the_arithmetic(tmp_path, model, "bf16")


def test_values_narrower_than_keys_are_served_as_published(tmp_path: Path) -> None:
    model = small_mimo()
    assert_as_close_as_the_arithmetic(save_mimo(model, tmp_path), model, "bf16")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_values_narrower_than_keys_of_a_gguf_file_are_served(kind: str, tmp_path: Path) -> None:
    assert_gguf_is_served(small_mimo().config, kind, tmp_path, "bf16")


_NARROW = (".b_proj", ".f_a_proj", ".f_b_proj", ".g_a_proj", ".g_b_proj")


@pytest.mark.parametrize("skipped", [(), _NARROW], ids=["all", "but narrow projections"])
@pytest.mark.parametrize("layout", ["w4a16", "w8a8", "fp8 blocks"])
def test_kimi_linear_is_served_as_published(layout: str, skipped: tuple[str, ...], tmp_path: Path) -> None:
    model = small_kimi_linear()
    path = save_published(model, tmp_path, layout, skip=lambda name: name.endswith(skipped), named=linear_name)
    if skipped:
        exceptions = {
            "modules_to_not_convert": [f"model.layers.0.self_attn{each}" for each in skipped],
            "ignore": ["lm_head", r"re:.*self_attn\.([fg]_[ab]|b)_proj$"],
        }
        edit_config(path, quantization_config=LAYOUTS[layout].config | exceptions)
    assert_as_close_as_the_arithmetic(path, model, "bf16")


@pytest.mark.spread("make")
@pytest.mark.parametrize("make", [small_qwen3_5, small_qwen3_5_moe])
@pytest.mark.parametrize("layout", ["gptq", "awq", "w4a16", "w8a8", "fp8 blocks"])
def test_delta_networks_are_served_as_published(
    layout: str, make: Callable[[], hf.PreTrainedModel], tmp_path: Path
) -> None:
    model = make()
    assert_as_close_as_the_arithmetic(save_qwen3_5(model, tmp_path, layout), model, "bf16")


@pytest.mark.spread("layout")
@pytest.mark.parametrize("make", [small_lfm2, small_lfm2_moe, small_granite_hybrid])
@pytest.mark.parametrize("layout", ["gptq", "fp8 blocks"])
def test_other_recurrent_layers_are_served_as_published(
    layout: str, make: Callable[[], hf.PreTrainedModel], tmp_path: Path
) -> None:
    model = make()
    assert_as_close_as_the_arithmetic(save_published(model, tmp_path, layout), model, "bf16")


@pytest.mark.spread("kind")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("make", [small_lfm2, small_granite_hybrid])
def test_other_recurrent_layers_of_a_gguf_file_are_served(
    kind: str, make: Callable[[], hf.PreTrainedModel], tmp_path: Path
) -> None:
    model = make()
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, expanded=False)
    assert_as_close_as_the_arithmetic(path, model, "bf16")


@pytest.mark.spread("kind")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_delta_networks_of_a_gguf_file_are_served(name: str, kind: str, tmp_path: Path) -> None:
    model = small_hybrid(name)
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, expanded=False)
    assert_as_close_as_the_arithmetic(path, model, "bf16")


@with_activations
@pytest.mark.parametrize("kind", checkpoints.GGUF_BLOCKS)
def test_a_gguf_file_is_served(kind: str, activations: ActivationDtype, tmp_path: Path) -> None:
    assert_gguf_is_served(hf.LlamaConfig(**checkpoints.sizes(256, 4, 2, 512)), kind, tmp_path, activations)


@pytest.mark.spread("kind")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("experts", [hf.MixtralConfig, hf.Qwen3MoeConfig])
def test_experts_of_a_gguf_file_are_served(experts: type[hf.PreTrainedConfig], kind: str, tmp_path: Path) -> None:
    sizes = checkpoints.sizes(256, 4, 2, 256, moe_intermediate_size=256, num_experts_per_tok=2)
    assert_gguf_is_served(experts(**sizes, num_local_experts=6, norm_topk_prob=True), kind, tmp_path, "bf16")


@pytest.mark.spread("kind")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("latent", [hf.DeepseekV2Config, hf.DeepseekV3Config])
def test_latents_of_a_gguf_file_are_served(latent: type[hf.PreTrainedConfig], kind: str, tmp_path: Path) -> None:
    sizes = checkpoints.sizes(256, 2, 2, 256, q_lora_rank=256, kv_lora_rank=256, n_routed_experts=8)
    experts = {"moe_intermediate_size": 256, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
    config = latent(**sizes, **experts, **row.LATENT_HEADS, first_k_dense_replace=1)
    assert_gguf_is_served(config, kind, tmp_path, "bf16")


def assert_gguf_is_served(config: hf.PreTrainedConfig, kind: str, tmp_path: Path, activations: ActivationDtype) -> None:
    model = checkpoints.build(config)
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, expanded=False)
    assert_as_close_as_the_arithmetic(path, model, activations)
