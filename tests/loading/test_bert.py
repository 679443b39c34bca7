"""Encoders: what a configuration may say, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.interface.windows import Window
from numaserve.workers.layers.parameters import MatrixParameter
from numaserve.workers.models.config.safetensors_files import SafetensorsFiles
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import frequencies
from safetensors.numpy import save_file

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


def test_ntk_scaling_of_gte_stretches_the_low_frequencies(tmp_path: Path) -> None:
    (rope,) = configured(tmp_path, "gte").decoder.ropes
    base, dim, factor = 20000.0, 12, 8.0
    found, scale = frequencies(rope, encoders.POSITIONS)
    # Formula 6 of https://kexue.fm/archives/9706, as in the modelling code of Alibaba-NLP/new-impl.
    exact = 1.0 / (base * factor) ** (np.arange(0, dim, 2) / dim) / factor ** (2 / dim)
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    np.testing.assert_allclose(found[-1] * factor, base ** -((dim - 2) / dim), rtol=1e-12)
    assert scale == 1.0


def modules(config: ModelConfig) -> set[str]:
    """The modules of the first layer's matrices."""
    matrices = (each for each in config.decoder.blocks[0].parameters() if isinstance(each, MatrixParameter))
    return {source.name for matrix in matrices for source in matrix.sources}


def test_projections_of_gte_are_packed_or_apart(tmp_path: Path) -> None:
    at = "encoder.layer.0."
    others = {f"{at}attention.o_proj", f"{at}mlp.up_gate_proj", f"{at}mlp.down_proj"}
    assert modules(configured(tmp_path, "gte")) == others | {f"{at}attention.qkv_proj"}
    apart = {f"{at}attention.{each}_proj" for each in "qkv"}
    assert modules(configured(tmp_path, "gte", pack_qkv=False)) == others | apart


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ("bert", {"is_decoder": True}, "is_decoder=True"),
        ("bert", {"hidden_act": "tanh"}, "hidden_act='tanh' is not supported; supported values: gelu"),
        ("bert", {"type_vocab_size": -1}, "type_vocab_size must be an integer from 0"),
        ("roberta", {"pad_token_id": 149}, "max_position_embeddings=150 leaves no position after pad_token_id"),
        ("modernbert", {"norm_bias": True}, "norm_bias=True is not supported"),
        ("modernbert", {"hidden_activation": "relu"}, "hidden_activation='relu' is not supported"),
        ("nomic-bert", {"moe_every_n_layers": 2}, "with experts, such as nomic-embed-text-v2-moe, are not supported"),
        ("nomic-bert", {"rotary_scaling_factor": 2}, "rotary_scaling_factor=2 is not supported"),
        ("nomic-bert", {"activation_function": "relu"}, "hidden_act='relu' is not supported"),
        ("nomic-bert", {"prenorm": True}, "prenorm=True is not supported"),
        ("nomic-bert", {"n_inner": 0}, "intermediate_size must be an integer"),
        ("gte", {"position_embedding_type": "absolute"}, "position_embedding_type='absolute' is not supported"),
        ("gte", {"layer_norm_type": "rms_norm"}, "layer_norm_type='rms_norm' is not supported"),
        ("gte", {"logn_attention_scale": True}, "logn_attention_scale=True is not supported"),
        ("gte", {"rope_scaling": {"type": "ntk", "factor": 2, "mixed_b": 0.5}}, "mixed_b=0.5 is not supported"),
        ("gte", {"hidden_act": "relu"}, "hidden_act='relu' is not supported"),
        ("distilbert", {"dim": 0}, "hidden_size must be an integer"),
    ],
)
def test_what_no_encoder_has_is_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=message):
        configured(tmp_path, name, **changes)


def test_norms_of_the_first_checkpoints_have_other_names(tmp_path: Path) -> None:
    tensors = {"encoder.LayerNorm.gamma": np.ones(2, np.float32), "encoder.LayerNorm.beta": np.zeros(2, np.float32)}
    save_file(tensors, tmp_path / "model.safetensors")
    (file,) = SafetensorsFiles(tmp_path)
    assert set(file.tensors) == {"encoder.LayerNorm.weight", "encoder.LayerNorm.bias"}
