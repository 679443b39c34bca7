"""BERT, its relatives and ModernBERT: what a configuration may say, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.interface.windows import Window
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig

from tests.support import encoders

POOLED = ModelSettings(pooled=True)


def configured(folder: Path, name: str, **changes: Any) -> ModelConfig:
    """The model of a tiny config.json with `changes`; None leaves a field out."""
    values = encoders.config_values(name) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return load_model_config(folder, POOLED)


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_tokens_see_both_sides_and_the_mean_is_pooled(name: str, tmp_path: Path) -> None:
    config = configured(tmp_path, name)
    assert config.bidirectional
    assert config.decoder.head is None
    assert config.decoder.pooling == "mean"
    assert config.num_layers == 3


def test_padding_takes_positions_of_roberta_alone(tmp_path: Path) -> None:
    names = ("bert", "distilbert", "roberta", "xlm-roberta")
    places = {name: configured(tmp_path, name).max_position for name in names}
    assert places == {"bert": 150, "distilbert": 150, "roberta": 148, "xlm-roberta": 148}
    assert configured(tmp_path, "roberta", pad_token_id=5).max_position == 144


def windows(config: ModelConfig) -> list[Window]:
    return [block.attention.cache.span for block in config.decoder.blocks]


def test_windows_of_modernbert_are_on_either_side(tmp_path: Path) -> None:
    full, sliding = Window(bidirectional=True), Window(20, bidirectional=True)
    assert windows(configured(tmp_path, "modernbert")) == [full, sliding, sliding]
    older = {"layer_types": None, "global_attn_every_n_layers": 2, "local_attention": 64}
    sliding = Window(32, bidirectional=True)
    assert windows(configured(tmp_path, "modernbert", **older)) == [full, sliding, full]


def test_ropes_of_modernbert_may_be_spelt_as_in_older_versions(tmp_path: Path) -> None:
    older = {"rope_parameters": None, "global_rope_theta": 123.0, "local_rope_theta": 45.0}
    ropes = configured(tmp_path, "modernbert", **older).decoder.ropes
    assert {rope.theta for rope in ropes} == {123.0, 45.0}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ("bert", {"is_decoder": True}, "is_decoder=True"),
        ("bert", {"hidden_act": "tanh"}, "hidden_act='tanh' is not supported; supported values: gelu"),
        ("bert", {"type_vocab_size": 0}, "type_vocab_size must be an integer from 1"),
        ("roberta", {"pad_token_id": 149}, "max_position_embeddings=150 leaves no position after pad_token_id"),
        ("modernbert", {"norm_bias": True}, "norm_bias=True is not supported"),
        ("modernbert", {"hidden_activation": "silu"}, "hidden_activation='silu' is not supported"),
        ("nomic-bert", {"moe_every_n_layers": 2}, "with experts, such as nomic-embed-text-v2-moe, are not supported"),
        ("nomic-bert", {"rotary_scaling_factor": 2}, "rotary_scaling_factor=2 is not supported"),
        ("nomic-bert", {"activation_function": "relu"}, "hidden_act='relu' is not supported"),
        ("nomic-bert", {"prenorm": True}, "prenorm=True is not supported"),
        ("nomic-bert", {"n_inner": 0}, "intermediate_size must be an integer"),
        ("distilbert", {"dim": 0}, "hidden_size must be an integer"),
    ],
)
def test_what_no_encoder_has_is_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=message):
        configured(tmp_path, name, **changes)
