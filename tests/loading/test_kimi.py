"""Kimi K2 and K2.5, as their config.json describes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.models.load import load_model_config
from test_latent_config import DEEPSEEK_R1
from test_model_config import write

from tests.support.models import layers_with_experts, the_only

# As published, without what has no meaning here: the text model of K2.5, which is K2 but for its context.
TEXT: dict[str, Any] = DEEPSEEK_R1 | {
    "bos_token_id": 163584,
    "eos_token_id": 163585,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 262144,
    "model_type": "kimi_k2",
    "n_group": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": DEEPSEEK_R1["rope_scaling"] | {"factor": 64.0, "beta_fast": 32.0, "beta_slow": 1.0},
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "topk_group": 1,
    "vocab_size": 163840,
}
_WEIGHTS = {
    "actorder": None,
    "block_structure": None,
    "dynamic": False,
    "group_size": 32,
    "num_bits": 4,
    "observer": "minmax",
    "observer_kwargs": {},
    "strategy": "group",
    "symmetric": True,
    "type": "int",
}
_GROUP = {"input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": _WEIGHTS}
QUANTIZATION: dict[str, Any] = {
    "config_groups": {"group_0": _GROUP},
    "format": "pack-quantized",
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
KIMI_K25: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "bos_token_id": 163584,
    "eos_token_id": 163585,
    "media_placeholder_token_id": 163605,
    "model_type": "kimi_k25",
    "pad_token_id": 163839,
    "text_config": TEXT | {"quantization_config": QUANTIZATION},
    "tie_word_embeddings": False,
    "vision_config": {"mm_projector_type": "patchmerger", "patch_size": 14, "vt_num_hidden_layers": 27},
}


@pytest.mark.parametrize("values", [TEXT | {"quantization_config": QUANTIZATION}, KIMI_K25], ids=["K2", "K2.5"])
def test_the_published_models_are_read(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 163586}))
    config = load_model_config(write(tmp_path, **values))
    latent, experts = the_only(config, LatentAttention), the_only(config, Experts)
    assert (latent.heads, latent.cache_dim, latent.rope.factor, latent.rope.theta) == (64, 576, 64.0, 50000.0)
    assert (config.num_layers, layers_with_experts(config)) == (61, tuple(range(1, 61)))
    assert (experts.routing.num_experts, experts.routing.num_groups, experts.routing.scale) == (384, 1, 2.827)
    assert (config.vocab_size, config.eos_token_ids, config.decoder.head.tied) == (163840, (163585, 163586), False)
    assert len(config.stored) == 60 * 384 * 3
    assert {(each.layout, each.native, each.group) for each in config.stored.values()} == {("packed", "int4", 32)}
    assert {module.split(".")[3] for module in config.stored} == {"experts"}
    assert [("vision tower" in note) for note in config.notes] == [True] * ("vision_config" in values)


def test_a_configuration_without_a_text_model_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"config\.json: text_config: num_hidden_layers is missing"):
        load_model_config(write(tmp_path, **KIMI_K25 | {"text_config": None}))
