"""LFM2: configurations and tensors as they are published."""

from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from numaserve.workers.layers.mlp import Mlp
from numaserve.workers.models.load import load_model_config
from published_hybrids import LFM2
from test_model_config import write

from tests.support.models import the_only

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
