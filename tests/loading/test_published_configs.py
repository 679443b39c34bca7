"""Configurations are read as transformers reads them: as published, where fields are left out, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.windows import ALL
from numaserve.workers.layers.experts import Experts
from numaserve.workers.models.family import Family
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.registry import families
from numaserve.workers.models.spec import ModelConfig
from published_configs import PUBLISHED, Published
from refused_configs import REFUSED
from test_model_config import LLAMA, write
from test_moe_config import MIXTRAL, QWEN

from tests.support import checkpoints
from tests.support.families.table import FAMILIES

SMALL: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "mixtral": MIXTRAL,
    "qwen3_moe": QWEN,
    "qwen2_moe": QWEN | {"architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": 96},
    "granite4": LLAMA
    | {"architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["attention"] * 2}
    | {"num_local_experts": 0, "shared_intermediate_size": 64},
}


def whole(config: hf.PreTrainedConfig, architecture: str) -> dict[str, Any]:
    """Return a config.json in which transformers leaves out nothing."""
    values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return values | {"architectures": [architecture]}


def written(folder: Path, published: Published) -> Path:
    """Write config.json, and settings of an image processor."""
    write(folder, **published.values)
    (folder / "preprocessor_config.json").write_text(json.dumps(published.processor))
    return folder


@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_read_as_transformers_reads_it(name: str, tmp_path: Path) -> None:
    published = PUBLISHED[name]
    config = load_model_config(written(tmp_path / "published", published))
    spelt = write(tmp_path / "spelt", **published.values | published.spelt)
    architecture = published.values["architectures"][0]
    values = whole(hf.AutoConfig.from_pretrained(spelt), architecture)
    same = load_model_config(written(tmp_path / "whole", replace(published, values=values)))
    assert config.decoder == same.decoder
    assert (config.max_position, config.stored) == (same.max_position, same.stored)
    if "eos_token_id" in published.values:
        assert config.eos_token_ids == same.eos_token_ids


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_layers(name: str, tmp_path: Path) -> None:
    published = PUBLISHED[name]
    config = load_model_config(written(tmp_path, published))
    assert len(config.decoder.blocks) == published.blocks
    with_experts = [index for index, block in enumerate(config.decoder.blocks) if isinstance(block.mlp, Experts)]
    assert with_experts == [*published.experts]
    assert full_layers(config) == [*(range(published.blocks) if published.full is None else published.full)]
    assert config.skipped_layers == published.skipped
    assert not any("tower" in note for note in config.notes)


def full_layers(config: ModelConfig) -> list[int]:
    """Return the numbers of the blocks whose attention reaches all tokens."""
    caches = [block.attention.cache for block in config.decoder.blocks]
    return [index for index, cache in enumerate(caches) if cache.is_paged and cache.span == ALL]


# Fields without a default here or in transformers, or whose defaults there contradict the sizes below.
NEEDED: dict[str, dict[str, Any]] = {
    "bert": {"dim": 96, "n_heads": 3, "n_layers": 8, "hidden_dim": 160},  # DistilBERT's names
    "deepseek_v2": {"num_experts_per_tok": 2},
    "gemma4": {"vocab_size_per_layer_input": 300_000},
    "granite_hybrid": {"mamba_n_heads": 6, "num_local_experts": 4, "layer_types": ["mamba", "attention"] * 4},
    "nemotron_h": {"layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba"]},
    "qwen3_moe": {"num_experts": 8},
}
SIZES = {
    "hidden_size": 96,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "num_hidden_layers": 8,
    "intermediate_size": 160,
    "vocab_size": 300_000,
    "max_position_embeddings": 32768,
}
# GTE's published form has other defaults than transformers'; the others are nested around another family.
WITH_DEFAULTS = [each for each in families().values() if each.name not in ("gte", "gemma4_assistant", "idefics3")]


@pytest.mark.parametrize("family", WITH_DEFAULTS, ids=lambda family: family.name)
def test_what_a_config_leaves_out_has_the_default_of_transformers(family: Family, tmp_path: Path) -> None:
    for architecture in family.architectures:
        made = getattr(hf, architecture, None)
        if made is None or hasattr(made.config_class(), "text_config"):
            continue
        sizes = SIZES | NEEDED.get(family.name, {})
        expected = load_model_config(write(tmp_path, **whole(made.config_class(**sizes), architecture)))
        config = load_model_config(write(tmp_path, **sizes, architectures=[architecture]))
        assert config.decoder == expected.decoder, architecture
        assert config.max_position == expected.max_position, architecture


def values_of(name: str) -> dict[str, Any]:
    if name in PUBLISHED:
        return PUBLISHED[name].values
    if name in SMALL:
        return SMALL[name]
    config = FAMILIES[name].config()
    return whole(config, checkpoints.architecture(config))


@pytest.mark.parametrize(
    ("name", "changes", "message"), [(name, *row) for name, rows in REFUSED.items() for row in rows]
)
def test_what_no_model_has_is_one_clear_line(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = values_of(name)
    if "text_config" in values and "text_config" not in changes:
        changes = {"text_config": values["text_config"] | changes}
    with pytest.raises(OperatorError) as error:
        load_model_config(write(tmp_path, **values | changes))
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)
