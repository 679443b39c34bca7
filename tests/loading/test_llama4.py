"""Llama 4: configurations, tensors and GGUF files as they are published."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mixers.query_key_norms import NoNorms, QueryKeyNorms, UnitNorms
from numaserve.workers.models.load import load_model_config
from numaserve.workers.program.rope import QueryScale
from test_gguf_source import Metadata
from test_gguf_source import write as write_gguf
from test_loader import edit_tensors
from test_model_config import write
from test_quantized_loading import assert_same_logits

from tests.support import checkpoints
from tests.support.models import layers_of, layers_with_experts, the_only
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import edit_config, save_published

SCOUT: dict[str, Any] = {
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": True,
    "bos_token_id": 200000,
    "eos_token_id": [200001, 200007, 200008],
    "floor_scale": 8192,
    "for_llm_compressor": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "model_type": "llama4_text",
    "moe_layers": list(range(48)),
    "no_rope_layers": [int((layer + 1) % 4 > 0) for layer in range(48)],
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "pad_token_id": 200018,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 1.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "use_qk_norm": True,
    "vocab_size": 202048,
}
MAVERICK = SCOUT | {
    "attn_temperature_tuning": 4,
    "interleave_moe_layer_step": 2,
    "max_position_embeddings": 1048576,
    "moe_layers": list(range(1, 48, 2)),
    "no_rope_layers": [],
    "num_local_experts": 128,
    "rope_scaling": None,
    "use_qk_norm": False,
}
OUTER: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "boi_token_index": 200080,
    "eoi_token_index": 200081,
    "image_token_index": 200092,
    "model_type": "llama4",
    "vision_config": {"hidden_size": 1408, "model_type": "llama4_vision_model"},
}
EPS = 2.0**-17
SCALE = QueryScale(0.10000000149011612, 8192, 1)


@pytest.mark.parametrize(("text", "experts"), [(SCOUT, 16), (MAVERICK, 128)], ids=["Scout", "Maverick"])
def test_the_published_models_are_read(text: dict[str, Any], experts: int, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [200001, 200007, 200008]}))
    config = load_model_config(write(tmp_path, **OUTER, text_config=text))
    is_scout = text is SCOUT
    assert layers_with_experts(config) == tuple(range(48) if is_scout else range(1, 48, 2))
    layer = the_only(config, Experts)
    assert (layer.routing.num_experts, layer.routing.top_k, layer.shared) == (experts, 1, 8192)
    assert config.eos_token_ids == (200001, 200007, 200008)
    assert not config.decoder.head.tied
    assert any("vision tower" in note for note in config.notes)
    layers = layers_of(config, Attention)
    assert [each.mask.window for each in layers] == [8192, 8192, 8192, None] * 12
    assert [each.rotation.rope.query_scale for each in layers] == [None, None, None, SCALE] * 12
    norms = UnitNorms(1e-5) if is_scout else NoNorms()
    assert [each.norms for each in layers] == [norms, norms, norms, NoNorms()] * 12
    assert layers[0].rotation.rope.kind == ("llama3" if is_scout else "default")


def test_layers_without_experts_rope_or_chunks_are_read(tmp_path: Path) -> None:
    small = SCOUT | {"architectures": ["Llama4ForCausalLM"], "num_hidden_layers": 4, "moe_layers": []}
    dense = load_model_config(write(tmp_path, **small | {"no_rope_layers": [1, 0, 1, 0], "attention_chunk_size": None}))
    assert layers_with_experts(dense) == ()
    assert {each.mask.window for each in layers_of(dense, Attention)} == {None}
    kinds = ["full_attention", "chunked_attention"] * 2
    changed = small | {"attn_temperature_tuning": False, "layer_types": kinds, "max_position_embeddings": 16384}
    layers = layers_of(load_model_config(write(tmp_path, **changed)), Attention)
    assert [each.mask.window for each in layers] == [None, 8192] * 2
    assert {each.rotation.rope.query_scale for each in layers} == {None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 48}, "'sliding_attention', which is not supported"),
        ({"layer_types": ["chunked_attention"] * 48, "attention_chunk_size": None}, "attention_chunk_size is null"),
        ({"no_rope_layers": [1, 1]}, "no_rope_layers has 2 entries for 48 layers"),
        ({"attn_temperature_tuning": 5}, "attn_temperature_tuning must be true or false"),
    ],
)
def test_other_variants_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path, **SCOUT | {"architectures": ["Llama4ForCausalLM"]} | change)
    with pytest.raises(OperatorError, match=re.escape(message)):
        load_model_config(path)


def small_maverick() -> hf.PreTrainedModel:
    """A model without norms of queries and keys, with two experts of a token."""
    sizes = checkpoints.sizes(96, 6, 2, 104, head_dim=16, num_local_experts=7, num_experts_per_tok=2)
    return checkpoints.build(
        hf.Llama4TextConfig(
            **sizes, **checkpoints.LLAMA4, no_rope_layers=[0, 1], use_qk_norm=False, attention_bias=True
        )
    )


def around(folder: Path, **outer: Any) -> None:
    """Make the checkpoint of a text model one of a multimodal model, as transformers saves it."""
    prefix = "language_model."
    seen = {"vision_model.class_embedding": torch.zeros(2), "multi_modal_projector.linear_1.weight": torch.zeros(2, 2)}
    edit_tensors(folder, lambda tensors: {prefix + name: each for name, each in tensors.items()} | seen)
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(OUTER | {"text_config": text} | outer))


def test_the_text_of_a_multimodal_model_is_computed_as_by_transformers(tmp_path: Path, team: Team) -> None:
    model = small_maverick()
    around(checkpoints.save(model, tmp_path))
    assert_same_logits(tmp_path, model, 2, team)


def test_experts_that_are_published_in_fp8_are_kept_as_they_are(tmp_path: Path, team: Team) -> None:
    model = small_maverick()

    def is_skipped(name: str) -> bool:
        return ".feed_forward." not in name or name.endswith(".router")

    layout = "fp8 rows"
    path = save_published(model, tmp_path, layout, skip=is_skipped)
    ignored = ["lm_head", "re:.*self_attn", "re:.*router", "re:.*vision_model.*", "re:.*multi_modal_projector.*"]
    edit_config(path, quantization_config=None)
    around(path, quantization_config=LAYOUTS[layout].config | {"ignore": ignored})
    for tp in (1, 2, 3):
        for weights in assert_same_logits(path, model, tp, team):
            layer = layers_of(weights.config, Experts)[1]
            assert {matrix.format for matrix in weights.matrices(layer.gate_up)} <= {"fp8"}


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_gguf_file_has_the_chunks_and_scales_of_llama_cpp(kind: str, tmp_path: Path, team: Team) -> None:
    sizes = checkpoints.sizes(96, 6, 2, 64, layers=4, head_dim=32, intermediate_size_mlp=160, num_local_experts=5)
    model = checkpoints.build(hf.Llama4TextConfig(**sizes, interleave_moe_layer_step=2))
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, embedding="BF16", expanded=False)
    for tp in (1, 2):
        for weights in assert_same_logits(path, model, tp, team):
            assert weights.config.decoder.blocks[3].attention.rotation.rope.query_scale == SCALE


@pytest.mark.parametrize(
    ("metadata", "window", "norms"),
    [
        ({}, 8192, UnitNorms(EPS)),
        ({"expert_count": 128}, 8192, NoNorms()),
        ({"attention.sliding_window": 0}, None, UnitNorms(EPS)),
    ],
)
def test_a_gguf_file_of_a_long_context_has_the_layers_of_llama_cpp(
    metadata: dict[str, int], window: int | None, norms: QueryKeyNorms, tmp_path: Path
) -> None:
    experts = {"expert_count": 16, "expert_used_count": 1, "expert_feed_forward_length": 32}
    shape = {"interleave_moe_layer_step": 1, "block_count": 4, "context_length": 16384}
    eps: Metadata = {"attention.layer_norm_rms_epsilon": EPS}
    path = write_gguf(tmp_path / "model.gguf", "llama4", experts | shape | eps | metadata)
    layers = layers_of(load_model_config(path), Attention)
    assert [each.mask.window for each in layers] == [window] * 3 + [None]
    assert layers[0].norms == norms
    assert layers[3].rotation.rope.query_scale == (None if window is None else SCALE)
