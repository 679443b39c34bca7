"""BERT and its relatives: what a configuration may say, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig

from tests.support import encoders

POOLED = ModelSettings(pooled=True)


def configured(folder: Path, name: str, **changes: Any) -> ModelConfig:
    """The model of a tiny config.json with `changes`; None leaves a field out."""
    values = encoders.CONFIGS[name]().to_dict() | {"architectures": [encoders.ARCHITECTURES[name]]} | changes
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
    places = {name: configured(tmp_path, name).max_position for name in encoders.CONFIGS}
    assert places == {"bert": 150, "distilbert": 150, "roberta": 148, "xlm-roberta": 148}
    assert configured(tmp_path, "roberta", pad_token_id=5).max_position == 144


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ("bert", {"is_decoder": True}, "is_decoder=True"),
        ("bert", {"hidden_act": "tanh"}, "hidden_act='tanh' is not supported; supported values: gelu"),
        ("bert", {"type_vocab_size": 0}, "type_vocab_size must be an integer from 1"),
        ("roberta", {"pad_token_id": 149}, "max_position_embeddings=150 leaves no position after pad_token_id"),
        ("distilbert", {"dim": 0}, "hidden_size must be an integer"),
    ],
)
def test_what_no_encoder_has_is_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=message):
        configured(tmp_path, name, **changes)
