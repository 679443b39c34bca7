"""LFM2: configurations and tensors as they are published."""

from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.layers.mixers.short_conv import ShortConv
from numaserve.workers.layers.mlp import Mlp
from numaserve.workers.models.load import load_model_config
from published_hybrids import LFM2
from test_model_config import write
from test_quantized_loading import assert_same_logits, matrices

from tests.support import checkpoints
from tests.support.models import layers_of, the_only
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import save_published

SIZES = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 96}


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
