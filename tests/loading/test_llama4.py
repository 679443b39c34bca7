"""Llama 4: configurations, tensors and GGUF files as they are published."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mixers.query_key_norms import NoNorms, QueryKeyNorms, UnitNorms
from numaserve.workers.models.load import load_model_config
from numaserve.workers.program.rope import QueryScale
from published_decoders import LLAMA4_OUTER, SCOUT
from test_gguf_source import Metadata
from test_gguf_source import write as write_gguf
from test_loader import edit_tensors
from test_model_config import write
from test_quantized_loading import assert_same_logits

from tests.support import checkpoints
from tests.support.families import row
from tests.support.models import layers_of, layers_with_experts
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import edit_config, save_published

EPS = 2.0**-17
SCALE = QueryScale(0.10000000149011612, 8192, 1)


def test_layers_without_experts_rope_or_chunks_are_read(tmp_path: Path) -> None:
    small = SCOUT["text_config"] | {"architectures": ["Llama4ForCausalLM"], "num_hidden_layers": 4, "moe_layers": []}
    dense = load_model_config(write(tmp_path, **small | {"no_rope_layers": [1, 0, 1, 0], "attention_chunk_size": None}))
    assert layers_with_experts(dense) == ()
    assert {each.mask.window for each in layers_of(dense, Attention)} == {None}
    kinds = ["full_attention", "chunked_attention"] * 2
    changed = small | {"attn_temperature_tuning": False, "layer_types": kinds, "max_position_embeddings": 16384}
    layers = layers_of(load_model_config(write(tmp_path, **changed)), Attention)
    assert [each.mask.window for each in layers] == [None, 8192] * 2
    assert {each.rotation.rope.query_scale for each in layers} == {None}


def small_maverick() -> hf.PreTrainedModel:
    """A model without norms of queries and keys, with two experts of a token."""
    sizes = checkpoints.sizes(96, 6, 2, 104, head_dim=16, num_local_experts=7, num_experts_per_tok=2)
    return checkpoints.build(
        hf.Llama4TextConfig(**sizes, **row.LLAMA4, no_rope_layers=[0, 1], use_qk_norm=False, attention_bias=True)
    )


def around(folder: Path, **outer: Any) -> None:
    """Make the checkpoint of a text model one of a multimodal model, as transformers saves it."""
    prefix = "language_model."
    seen = {"vision_model.class_embedding": torch.zeros(2), "multi_modal_projector.linear_1.weight": torch.zeros(2, 2)}
    edit_tensors(folder, lambda tensors: {prefix + name: each for name, each in tensors.items()} | seen)
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(LLAMA4_OUTER | {"text_config": text} | outer))


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
