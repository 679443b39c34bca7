"""LFM2: configurations and tensors as they are published."""

import re
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mixers.short_conv import ShortConv
from numaserve.workers.layers.mlp import Mlp
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from test_gguf_source import write as write_gguf
from test_model_config import write
from test_quantized_loading import assert_same_logits, matrices

from tests.support import checkpoints
from tests.support.models import layers_of, layers_with_experts, the_only
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import save_published

# As published, without what has no meaning here.
LFM2: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_dim": 2048,
    "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "block_norm_eps": 1e-05,
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 2048,
    "eos_token_id": 7,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048,
    "max_position_embeddings": 128000,
    "model_type": "lfm2",
    "norm_eps": 1e-05,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 1000000.0,
    "vocab_size": 65536,
}
LFM2_MOE: dict[str, Any] = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "eos_token_id": 7,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "layer_types": ["full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)],
    "max_position_embeddings": 128000,
    "model_type": "lfm2_moe",
    "moe_intermediate_size": 1792,
    "norm_eps": 1e-05,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "rope_theta": 1000000.0,
    "routed_scaling_factor": 1.0,
    "use_expert_bias": True,
    "vocab_size": 65536,
}
SIZES = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 96}


def attending(config: ModelConfig) -> list[int]:
    return [index for index, block in enumerate(config.decoder.blocks) if isinstance(block.attention, Attention)]


def test_the_published_models_are_read(tmp_path: Path) -> None:
    dense = load_model_config(write(tmp_path / "dense", **LFM2))
    mixed = load_model_config(write(tmp_path / "mixed", **LFM2_MOE))
    assert attending(dense) == [2, 5, 8, 10, 12, 14]
    assert attending(mixed) == [2, 6, 10, 14, 18, 21]
    for config in (dense, mixed):
        conv, attention = the_only(config, ShortConv), the_only(config, Attention)
        assert (conv.hidden, conv.taps, conv.biases) == (2048, 3, False)
        assert (attention.query_heads, attention.kv_heads, attention.head_dim) == (32, 8, 64)
        assert attention.rotation.rope.theta == 1e6
        assert config.decoder.norm.eps == 1e-5
        assert config.decoder.head is not None
        assert config.decoder.head.tied
    assert the_only(dense, Mlp).intermediate == 8192
    experts = the_only(mixed, Experts)
    assert (experts.routing.num_experts, experts.routing.top_k, experts.intermediate) == (32, 4, 1792)
    assert (experts.routing.scoring, experts.routing.renormalize, experts.correction_bias) == ("sigmoid", True, True)
    assert layers_with_experts(mixed) == tuple(range(2, 24))


@pytest.mark.parametrize(
    "changes",
    [
        {"block_auto_adjust_ff_dim": False},
        {"block_ffn_dim_multiplier": 1.3, "block_multiple_of": 64},
    ],
)
def test_mlps_are_as_wide_as_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    values = LFM2 | changes
    model = hf.Lfm2Config(**{key: each for key, each in (values | SIZES).items() if key != "full_attn_idxs"})
    width = hf.AutoModelForCausalLM.from_config(model).model.layers[0].feed_forward.w1.out_features
    config = load_model_config(write(tmp_path, **values))
    assert the_only(config, Mlp).intermediate == width


@pytest.mark.parametrize("architecture", ["Lfm2ForCausalLM", "Lfm2MoeForCausalLM"])
def test_what_a_config_leaves_out_has_the_default_of_transformers(architecture: str, tmp_path: Path) -> None:
    is_dense = architecture == "Lfm2ForCausalLM"
    expected = (hf.Lfm2Config if is_dense else hf.Lfm2MoeConfig)(**SIZES, intermediate_size=96)
    config = load_model_config(write(tmp_path, architectures=[architecture], **SIZES, intermediate_size=96))
    attention = the_only(config, Attention)
    assert attending(config) == [0, 1]
    assert attention.rotation.rope.theta == expected.rope_parameters["rope_theta"]
    assert config.max_position == expected.max_position_embeddings
    assert config.decoder.norm.eps == expected.norm_eps
    assert config.decoder.head is not None
    assert config.decoder.head.tied == expected.tie_word_embeddings
    if not is_dense:
        assert isinstance(expected, hf.Lfm2MoeConfig)
        assert [type(block.mlp) for block in config.decoder.blocks] == [Mlp] * expected.num_dense_layers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["conv"] * 16}, "all 16 layers are of kind conv; at least one layer must be of kind full"),
        ({"layer_types": ["conv", "sliding_attention"] * 8}, "'sliding_attention', which is not supported"),
        ({"layer_types": ["conv"]}, "layer_types must be a list of 16 strings"),
        ({"conv_L_cache": 9}, "conv_L_cache must be an integer from 2 to 8, not 9"),
        ({"conv_bias": "yes"}, "conv_bias must be true or false"),
        ({"block_multiple_of": 0}, "block_multiple_of must be an integer from 1 to"),
    ],
)
def test_what_no_model_has_is_one_clear_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load_model_config(write(tmp_path, **LFM2 | changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["lfm2-biases", "lfm2_moe"])
@pytest.mark.parametrize("layout", ["gptq", "w4a16", "w8a8", "fp8 blocks"])
def test_a_published_checkpoint_is_kept_as_it_is(layout: str, name: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(
        (hf.Lfm2Config if name == "lfm2-biases" else hf.Lfm2MoeConfig)(
            **checkpoints.sizes(128, 4, 2, 256, layers=2, moe_intermediate_size=128, num_experts=4),
            layer_types=["conv", "full_attention"],
            block_auto_adjust_ff_dim=False,
            conv_bias=name == "lfm2-biases",
            num_experts_per_tok=2,
            num_dense_layers=1,
        )
    )
    path = save_published(model, tmp_path, layout)
    for tp in (1, 3):
        for weights in assert_same_logits(path, model, tp, team):
            assert {matrix.format for matrix in matrices(weights)} - {"bf16"} == {LAYOUTS[layout].native}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "IQ4_XS"])
@pytest.mark.parametrize("name", ["lfm2", "lfm2_moe"])
def test_a_gguf_file_stays_quantized(name: str, kind: str, tmp_path: Path, team: Team) -> None:
    more = {"num_experts": 4, "num_experts_per_tok": 2, "num_dense_layers": 1, "moe_intermediate_size": 256}
    model = checkpoints.build(
        (hf.Lfm2Config if name == "lfm2" else hf.Lfm2MoeConfig)(
            **checkpoints.sizes(256, 4, 2, 256, layers=2, tie_word_embeddings=name == "lfm2_moe"),
            layer_types=["conv", "full_attention"],
            **({} if name == "lfm2" else more),
        )
    )
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, expanded=False)
    model.model.embed_tokens.weight.data = model.model.embed_tokens.weight.data.bfloat16().float()
    config = load_model_config(path)
    assert [type(layer).__name__ for layer in layers_of(config, ShortConv)] == ["ShortConv"]
    # A tied head stays quantized, while the embedding is rounded to bf16.
    atol = 3e-4 if kind == "Q8_0" and name == "lfm2" else 0.2
    assert_same_logits(path, model, 2, team, atol=atol)


def test_a_gguf_file_without_a_list_of_kv_heads_is_one_clear_line(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "lfm2", {"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3})
    with pytest.raises(OperatorError, match="head_count_kv must be a list with a number for each of the 2") as error:
        load_model_config(path)
    assert "\n" not in str(error.value)
