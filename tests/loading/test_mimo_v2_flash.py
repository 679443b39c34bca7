"""MiMo-V2-Flash: configurations and tensors as they are published, and values narrower than keys."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.models.load import load_model_config
from test_gguf_source import write as write_gguf
from test_loader import edit_tensors
from test_model_config import norm_eps, write
from test_quantized_loading import assert_same_logits, matrices

from tests.support import checkpoints
from tests.support.models import layers_of, layers_with_experts, the_only, windows
from tests.support.published_checkpoints import edit_config, mimo_fields, save_mimo, small_mimo

FULL = (0, *range(5, 48, 6))
# As published, without what has no meaning here.
PUBLISHED: dict[str, Any] = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "add_full_attention_sink_bias": False,
    "add_swa_attention_sink_bias": True,
    "attention_bias": False,
    "attention_chunk_size": 128,
    "attention_value_scale": 0.707,
    "head_dim": 192,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "hybrid_layer_pattern": [int(layer not in FULL) for layer in range(48)],
    "intermediate_size": 16384,
    "layernorm_epsilon": 1e-05,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": [0, *[1] * 47],
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5000000,
    "routed_scaling_factor": None,
    "scoring_func": "sigmoid",
    "sliding_window": 128,
    "sliding_window_size": 128,
    "swa_head_dim": 192,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_rope_theta": 10000,
    "swa_v_head_dim": 128,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 152576,
}


def test_the_published_model_is_read(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **PUBLISHED))
    assert windows(config) == [None if layer in FULL else 129 for layer in range(48)]
    for layer, attention in enumerate(layers_of(config, Attention)):
        is_full, rope = layer in FULL, attention.rotation.rope
        assert (attention.query_heads, attention.kv_heads) == (64, 4 if is_full else 8)
        assert (attention.head_dim, attention.values, attention.value_scale) == (192, 128, 0.707)
        assert (rope.theta, rope.rotary_dim) == (5e6 if is_full else 1e4, 64)
        assert (attention.mask.sinks is None) == is_full
    experts = the_only(config, Experts)
    assert (experts.routing.num_experts, experts.routing.top_k, experts.routing.scale) == (256, 8, 1.0)
    assert (experts.routing.scoring, experts.routing.renormalize, experts.correction_bias) == ("sigmoid", True, True)
    assert (experts.intermediate, experts.shared) == (2048, 0)
    assert layers_with_experts(config) == tuple(range(1, 48))
    assert norm_eps(config) == 1e-5


@pytest.mark.parametrize(("dtype", "of_token"), [("bf16", 2 * (192 + 128)), ("int8", 192 + 128 + 2 * 2)])
def test_a_page_has_the_dimensions_of_keys_and_those_of_values(dtype: Any, of_token: int, tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **PUBLISHED))
    heads = 4 * len(FULL) + 8 * (48 - len(FULL))
    for ranks in (1, 2):
        part = config.partition([1] * ranks).ranks[0]
        assert config.decoder.page_bytes(part, dtype) == PAGE_SIZE * of_token * heads // ranks


def test_what_a_config_leaves_out_has_the_default_of_transformers(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 7, "intermediate_size": 96}
    sizes |= {"vocab_size": 96, "max_position_embeddings": 512}
    expected = hf.MiMoV2FlashConfig(**sizes)
    config = load_model_config(write(tmp_path, architectures=["MiMoV2FlashForCausalLM"], **sizes))
    assert windows(config) == [129 if kind == "sliding_attention" else None for kind in expected.layer_types]
    first, second, *_ = layers_of(config, Attention)
    assert (first.kv_heads, second.kv_heads) == (4, 8)
    assert (first.head_dim, first.values) == (expected.head_dim, expected.v_head_dim)
    assert first.value_scale == expected.attention_value_scale
    ropes = (expected.rope_parameters[kind] for kind in ("full_attention", "sliding_attention"))
    assert [each.rotation.rope.theta for each in (first, second)] == [each["rope_theta"] for each in ropes]
    experts = the_only(config, Experts)
    assert (experts.routing.num_experts, experts.routing.top_k) == (256, expected.num_experts_per_tok)
    assert layers_with_experts(config) == tuple(range(1, 7))
    assert norm_eps(config) == expected.rms_norm_eps


def test_both_spellings_of_a_configuration_are_the_same_model(tmp_path: Path) -> None:
    model = checkpoints.random_model("mimo_v2_flash")
    saved = load_model_config(checkpoints.save(model, tmp_path))
    edit_config(tmp_path, **mimo_fields(model.config))
    published = load_model_config(tmp_path)
    assert published.decoder == saved.decoder
    assert published.notes == saved.notes == ()


def test_layers_that_predict_are_left_out_with_a_note(tmp_path: Path, team: Team) -> None:
    model = small_mimo()
    path = save_mimo(model, tmp_path)
    more = {f"model.mtp.layers.{layer}.eh_proj.weight": torch.zeros(256, 512) for layer in range(3)}
    edit_tensors(path, lambda tensors: tensors | more)
    assert load_model_config(path).notes == ("the checkpoint's multi-token prediction (MTP) layers are skipped: 3",)
    assert_same_logits(path, model, 1, team)


def test_a_published_checkpoint_is_kept_as_it_is(tmp_path: Path, team: Team) -> None:
    model = small_mimo()
    path = save_mimo(model, tmp_path)
    stored = load_model_config(path).stored
    assert "layers.0.self_attn.v_proj" in stored
    assert not any(name.endswith("o_proj") for name in stored)
    for tp in (1, 2, 3):
        for weights in assert_same_logits(path, model, tp, team):
            formats = {matrix.format for matrix in matrices(weights)}
            assert formats == {"fp8", "bf16"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"swa_head_dim": 128}, "swa_head_dim=128 is not supported"),
        ({"swa_v_head_dim": 192}, "swa_v_head_dim=192 is not supported"),
        ({"swa_num_attention_heads": 32}, "swa_num_attention_heads=32 is not supported"),
        ({"swa_num_key_value_heads": 7}, "swa_num_key_value_heads=7 must divide num_attention_heads=64"),
        ({"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias=True is not supported"),
        ({"scoring_func": "softmax"}, "scoring_func='softmax' is not supported"),
        ({"n_shared_experts": 1}, "n_shared_experts=1 is not supported"),
        ({"hybrid_layer_pattern": [0, 1]}, "layer_types must be a list of 48 strings"),
        ({"moe_layer_freq": [0, 1, 0, *[1] * 45]}, 'mlp_layer_types must name "dense" layers first'),
    ],
)
def test_what_no_model_has_is_one_clear_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load_model_config(write(tmp_path, **PUBLISHED | changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_gguf_file_stays_quantized(kind: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(
        hf.MiMoV2FlashConfig(
            **checkpoints.sizes(256, 4, 2, 256, head_dim=192, v_head_dim=128, moe_intermediate_size=256),
            n_routed_experts=4,
            num_experts_per_tok=2,
            sliding_window=16,
        )
    )
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, expanded=False)
    model.model.embed_tokens.weight.data = model.model.embed_tokens.weight.data.bfloat16().float()
    config = load_model_config(path)
    assert windows(config) == [None, 16]
    assert layers_with_experts(config) == (1,)
    assert_same_logits(path, model, 2, team)


MIMO2: dict[str, Any] = {
    "block_count": 5,
    "nextn_predict_layers": 3,
    "attention.head_count": 4,
    "attention.head_count_kv": [1, 2, 2, 2, 2],
    "attention.sliding_window": 128,
    "attention.sliding_window_pattern": [0, 1, 1, 1, 1],
    "attention.key_length": 32,
    "attention.value_length": 24,
    "rope.dimension_count": 16,
    "rope.freq_base": 5e6,
    "expert_count": 5,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
}


def test_layers_that_predict_are_left_out_of_a_gguf_file(tmp_path: Path) -> None:
    config = load_model_config(write_gguf(tmp_path / "model.gguf", "mimo2", MIMO2))
    first, second = layers_of(config, Attention)
    assert (first.kv_heads, second.kv_heads) == (1, 2)
    assert (first.values, first.value_scale, first.rotation.rope.rotary_dim) == (24, 1.0, 16)
    assert first.rotation.rope.theta == second.rotation.rope.theta == 5e6
    assert windows(config) == [None, 129]
    assert config.notes == ("the checkpoint's multi-token prediction (MTP) layers are skipped: 3",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.head_count_kv": [1, 2, 2, 1, 2]}, "head_count_kv must have one number for layers that slide"),
        ({"attention.sliding_window_pattern": [0, 1]}, "sliding_window_pattern must have a value for each layer"),
        ({"expert_gating_func": 1}, "expert_gating_func=1 is not supported"),
    ],
)
def test_a_gguf_file_of_another_form_is_one_clear_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=message) as error:
        load_model_config(write_gguf(tmp_path / "model.gguf", "mimo2", MIMO2 | changes))
    assert "\n" not in str(error.value)
