"""GGUF files of DeepSeek's architecture: what they say and hold is what the same model's folder does."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import BF16_WEIGHTS
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.layers.norm import Norm
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from test_latent_loading import exchanged_keys
from test_moe_loading import experts_of
from test_quantized_loading import assert_same_logits, load

from tests.support import checkpoints
from tests.support.families.table import LATENTS
from tests.support.loaded import Loaded
from tests.support.models import the_only

FORMS = pytest.mark.parametrize("split", [True, False], ids=["split", "whole"])


def as_folder(config: ModelConfig, folder: ModelConfig) -> ModelConfig:
    """The configuration of a file without what only a folder or only a file says."""
    eps = folder.decoder.norm.eps

    def norm(of_file: Norm) -> Norm:
        assert of_file.eps == pytest.approx(eps)
        return replace(of_file, eps=eps)

    blocks = [
        replace(
            block,
            input_norm=norm(block.input_norm),
            attention=replace(block.attention, expansions_apart=False),
            mlp_norm=norm(block.mlp_norm),
        )
        for block in config.decoder.blocks
    ]
    decoder = replace(config.decoder, blocks=tuple(blocks), norm=norm(config.decoder.norm))
    # Files of GLM-4.7-Flash call it DeepSeek's.
    names = {"family": folder.family, "architecture": folder.architecture}
    return replace(config, decoder=decoder, stored=folder.stored, skipped_layers=folder.skipped_layers, **names)


@FORMS
@pytest.mark.parametrize("case", LATENTS)
def test_a_file_and_a_folder_of_one_model_are_packed_to_the_same_bytes(
    case: str, split: bool, tmp_path: Path, team: Team
) -> None:
    model = checkpoints.random_model(case)
    folder = checkpoints.save(model, tmp_path / "folder")
    file = checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16", split_kv_b=split)
    config = load_model_config(file)
    assert the_only(config, LatentAttention).expansions_apart == split
    assert as_folder(config, load_model_config(folder)) == load_model_config(folder)
    for tp in (1, 2):
        of_folder, of_file = (load(path, tp, team, BF16_WEIGHTS) for path in (folder, file))
        for ours, theirs in zip(of_file, of_folder, strict=True):
            assert packed(ours) == packed(theirs)


def packed(loaded: Loaded) -> list[bytes]:
    return [bytes(matrix.buffer()) for matrix in loaded.all_matrices]


def small_deepseek(model_type: str, *, top_k: int) -> hf.PreTrainedModel:
    """Widths are multiples of blocks of 256, but for the part of a head without positions."""
    sizes = checkpoints.sizes(256, 2, 2, 256, q_lora_rank=256, kv_lora_rank=256, n_routed_experts=8)
    dims = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 128}
    experts = {
        "moe_intermediate_size": 256,
        "num_experts_per_tok": top_k,
        "n_group": 4,
        "topk_group": max(2, top_k // 2),
    }
    chosen = {"topk_method": "group_limited_greedy"} if model_type == "deepseek_v2" else {}
    kind = {"deepseek_v2": hf.DeepseekV2Config, "deepseek_v3": hf.DeepseekV3Config}[model_type]
    return checkpoints.build(kind(**sizes, **dims, **experts, **chosen, first_k_dense_replace=1))


@FORMS
@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0", "Q4_K"])
@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3"])
def test_a_quantized_file_is_what_transformers_makes_of_its_values(
    model_type: str, kind: str, split: bool, tmp_path: Path, team: Team
) -> None:
    # Scales and minima of Q4_K are products of two numbers, of which 11 bits are kept: near a tie that would be enough
    # to choose other experts.
    model = small_deepseek(model_type, top_k=8 if kind == "Q4_K" else 2)
    path = checkpoints.save_gguf(
        model, tmp_path / "model.gguf", kind, embedding="BF16", expanded=kind == "F32", split_kv_b=split
    )
    assert load_model_config(path).family == model_type
    exchanged_keys(model, load(path, 1, team)[0])
    atol = 6e-2 if kind == "Q4_K" else 3e-4
    native = {"Q8_0": "int8_group", "Q4_0": "int4", "Q4_K": "int4"}.get(kind, "bf16")
    for loaded in assert_same_logits(path, model, 2, team, atol=atol):
        experts = experts_of(loaded, 1)
        assert experts.router.format == "bf16"
        assert {matrix.format for matrix in experts.all} == {native}


def test_layers_for_predicting_several_tokens_are_left_out(tmp_path: Path, team: Team) -> None:
    model = checkpoints.random_model("deepseek_v3")
    (plain,) = load(checkpoints.save_gguf(model, tmp_path / "plain.gguf", "BF16"), 1, team)
    more = {f"model.layers.3.{name}.weight": torch.ones(96, 192) for name in ("input_layernorm", "enorm", "eh_proj")}
    (loaded,) = load(checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16", more=more), 1, team)
    config = loaded.config
    assert (config.num_layers, config.skipped_layers, len(config.decoder.blocks)) == (3, 1, 3)
    assert packed(loaded) == packed(plain)
    assert config.notes


def test_a_file_without_groups_or_a_factor_on_the_weights_has_none(tmp_path: Path) -> None:
    keys = ("expert_group_count", "expert_group_used_count", "expert_weights_scale", "expert_weights_norm")
    routing = the_only(load_model_config(save(tmp_path, "deepseek_v3", **dict.fromkeys(keys))), Experts).routing
    assert (routing.num_groups, routing.top_groups, routing.scale, routing.renormalize) == (1, 1, 1.0, False)


@pytest.mark.parametrize(("tokens", "family"), [(154880, "deepseek_v3"), (154881, "deepseek_v2")])
@pytest.mark.parametrize("layers", [47, 48])
def test_the_first_files_of_glm_are_recognised_by_their_sizes(
    layers: int, tokens: int, family: str, tmp_path: Path
) -> None:
    changes = {"block_count": layers, "vocab_size": tokens, "expert_gating_func": None, "expert_weights_norm": None}
    assert load_model_config(save(tmp_path, "glm4_moe_lite", **changes)).family == family


def save(folder: Path, case: str, **changes: int | None) -> Path:
    return checkpoints.save_gguf(checkpoints.random_model(case), folder / "model.gguf", "BF16", changes=changes)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_gating_func", 3, "expert_gating_func=3 is not supported"),
        ("attention.temperature_scale", 1, "temperature_scale=1 is not supported"),
        ("attention.key_length_mla", 32, "key_length_mla must be an integer from 33"),
        (
            "attention.key_length_mla",
            96,
            "attn_q_b.weight has shape [192, 72], but the configuration asks for [288, 72]",
        ),
        ("attention.value_length_mla", 32, "attn_v_b.weight has shape [3, 64, 96]"),
        ("attention.kv_lora_rank", 33, "kv_lora_rank=33 is not supported"),
        ("rope.dimension_count", 0, "rope.dimension_count must be an integer from 1"),
        ("leading_dense_block_count", 9, "leading_dense_block_count must be"),
        ("leading_dense_block_count", 2, "lacks model.layers.1.mlp.gate_proj.weight"),
        ("nextn_predict_layers", 3, "nextn_predict_layers must be an integer from 0 to 2"),
        ("expert_count", 15, "n_group=4 does not divide the 15 experts evenly"),
        ("expert_group_used_count", 5, "expert_group_used_count must be an integer from 0 to 4"),
        ("expert_shared_count", 2, "ffn_gate_shexp.weight has shape [96, 96]"),
    ],
)
def test_a_file_whose_sizes_do_not_fit_is_one_clear_line(
    key: str, value: int, message: str, tmp_path: Path, team: Team
) -> None:
    path = save(tmp_path, "deepseek_v3", **{key: value})
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load(path, 1, team)
    assert "\n" not in str(error.value)
