"""Kimi K2 and K2.5, as their config.json describes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.models.load import load_model_config
from published_decoders import KIMI_K25
from test_model_config import write

from tests.support.models import layers_with_experts, the_only


@pytest.mark.parametrize("values", [KIMI_K25["text_config"], KIMI_K25], ids=["K2", "K2.5"])
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
    tower = config.decoder.tower
    assert (tower is not None, config.notes) == ("vision_config" in values, ())
    if tower is not None and config.images is not None:
        assert (len(tower.blocks), tower.hidden, tower.patch, tower.factor) == (27, 1152, 14, 2)
        assert (config.images.token, config.images.sizes.described) == (163605, {"square": 28, "max_tokens": 1337})
