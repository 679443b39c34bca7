"""Mistral Small 4: its configuration, and the same model in a folder and in a GGUF file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import BF16_WEIGHTS
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.models.config.rope import query_scale
from numaserve.workers.models.load import load_model_config
from safetensors.torch import load_file
from test_gguf_deepseek import as_folder, packed
from test_loader import edit_tensors
from test_model_config import write
from test_quantized_loading import load

from tests.support import checkpoints
from tests.support.loaded import load_part
from tests.support.models import layers_with_experts, the_only

# The configuration of transformers that is named after the published model.
TEXT: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 1048576,
    "model_type": "mistral4",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 32,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 128.0,
        "llama_4_scaling_beta": 0.1,
        "max_position_embeddings": 1048576,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 8192,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "rope_type": "yarn",
    },
    "vocab_size": 131072,
}
NESTED = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": TEXT, "tie_word_embeddings": False}
PLAIN = {"architectures": ["Mistral4ForCausalLM"], **TEXT}


@pytest.mark.parametrize("values", [PLAIN, NESTED], ids=["plain", "nested"])
def test_the_text_model_is_read_up_to_the_length_where_it_scales_queries(
    values: dict[str, Any], tmp_path: Path
) -> None:
    config = load_model_config(write(tmp_path, **values))
    latent, experts = the_only(config, LatentAttention), the_only(config, Experts)
    assert (latent.q_rank, latent.kv_rank, latent.nope_dim, latent.rope_dim, latent.value_dim) == (
        1024,
        256,
        64,
        64,
        128,
    )
    assert (latent.rope.rotary_dim, latent.rope.factor) == (64, 128.0)
    with torch.device("meta"):
        expected = hf.Mistral4ForCausalLM(hf.Mistral4Config(**TEXT)).model.layers[0]
    assert latent.scale == pytest.approx(expected.self_attn.scaling, rel=1e-12)
    assert latent.eps == expected.self_attn.kv_a_layernorm.variance_epsilon
    assert layers_with_experts(config) == tuple(range(36))
    routing = experts.routing
    assert (routing.num_experts, routing.top_k, routing.scoring, routing.renormalize) == (128, 4, "softmax", True)
    assert (config.max_position, config.decoder.head.tied) == (1048576, False)
    assert latent.rope.query_scale == query_scale(0.1, 8192)


def test_without_a_beta_queries_are_not_scaled(tmp_path: Path) -> None:
    rope = TEXT["rope_parameters"] | {"llama_4_scaling_beta": 0.0}
    config = load_model_config(write(tmp_path, **PLAIN | {"rope_parameters": rope}))
    assert the_only(config, LatentAttention).rope.query_scale is None


def text_model() -> hf.PreTrainedModel:
    nested = checkpoints.NESTED_CASES["mistral4"]().text_config
    return checkpoints.randomise(hf.Mistral4ForCausalLM(nested).eval())


def test_a_file_and_a_folder_are_packed_to_the_same_bytes(tmp_path: Path, team: Team) -> None:
    model = text_model()
    folder = checkpoints.save(model, tmp_path / "folder")
    file = checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16")
    of_folder, of_file = load_model_config(folder), load_model_config(file)
    assert of_file.family == of_folder.family == "mistral4"
    names = the_only(of_folder, Experts).names
    blocks = tuple(
        replace(each, mlp=replace(each.mlp, names=names)) for each in as_folder(of_file, of_folder).decoder.blocks
    )
    assert blocks == of_folder.decoder.blocks
    for tp in (1, 2):
        for ours, theirs in zip(load(file, tp, team, BF16_WEIGHTS), load(folder, tp, team, BF16_WEIGHTS), strict=True):
            assert packed(ours) == packed(theirs)


def test_the_experts_of_a_layer_lie_in_one_tensor_gate_above_up(tmp_path: Path, team: Team) -> None:
    folder = checkpoints.save(text_model(), tmp_path)
    whole = load_file(folder / "model.safetensors")["model.layers.1.mlp.experts.down_proj"].float().numpy()
    loaded = load_part(folder, team, [1])
    experts = loaded.config.decoder.blocks[1].mlp
    assert isinstance(experts, Experts)
    down = loaded.matrices(experts.down)
    assert all((matrix.to_numpy() == each).all() for matrix, each in zip(down, whole, strict=True))
    edit_tensors(folder, lambda t: {name: each[:-1] if ".experts." in name else each for name, each in t.items()})
    with pytest.raises(OperatorError, match="the configuration asks for 12 experts"):
        load_part(folder, team, [1])
