"""Nemotron-H: configurations and tensors as they are published."""

from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.mixers.mamba2 import Mamba2
from numaserve.workers.layers.mlp import Mlp
from numaserve.workers.layers.stored import GGUF_BLOCKS
from numaserve.workers.models.load import load_model_config
from safetensors.torch import load_file
from test_gguf_source import OF_ARCHITECTURE
from test_gguf_source import write as write_gguf
from test_quantized_loading import assert_same_logits

from tests.support import checkpoints
from tests.support.models import layers_of


def test_names_of_nemotron_are_those_of_its_backbone(tmp_path: Path) -> None:
    folder = checkpoints.save(checkpoints.random_model("nemotron_h"), tmp_path)
    names = load_file(folder / "model.safetensors")
    assert {"backbone.embeddings.weight", "backbone.norm_f.weight", "backbone.layers.0.mixer.A_log"} <= set(names)
    assert "backbone.layers.1.mixer.experts.3.up_proj.weight" in names
    assert not any(isinstance(layer, Mlp) for layer in layers_of(load_model_config(folder), Mlp))


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("kinds", [["mamba", "moe", "attention", "moe"], ["mamba", "mlp", "attention", "mamba"]])
def test_a_gguf_file_of_nemotron_computes_what_the_model_computes(
    kinds: list[str], tp: int, tmp_path: Path, team: Team
) -> None:
    config = checkpoints.MOE_CASES["nemotron_h"]()
    config.layers_block_type = [
        {"mamba": "linear_attention", "attention": "full_attention"}.get(each, each) for each in kinds
    ]
    config.n_group = 1
    model = checkpoints.build(config)
    assert_same_logits(checkpoints.save_gguf(model, tmp_path / "model.gguf", "F32"), model, tp, team)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K"])
def test_a_gguf_file_stays_quantized_but_for_steps(kind: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(
        hf.NemotronHConfig(
            **checkpoints.COMMON,
            layers_block_type=["linear_attention", "moe", "full_attention", "moe"],
            hidden_size=256,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            ssm_state_size=32,
            mamba_num_heads=4,
            mamba_head_dim=64,
            n_groups=2,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=256,
            moe_shared_expert_intermediate_size=256,
        )
    )
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, expanded=False)
    for values in (model.model.embeddings.weight.data, model.model.layers[0].mixer.in_proj.weight.data[-4:]):
        values.copy_(values.bfloat16().float())
    # Scales and minima of Q4_K are products of two numbers, of which 11 bits are kept.
    for weights in assert_same_logits(path, model, 2, team, atol=0.3 if kind == "Q4_K" else 5e-4):
        space = weights.config.decoder.blocks[0].attention
        assert isinstance(space, Mamba2)
        formats = [weights.matrix(each).format for each in (space.into, space.o, space.steps)]
        assert formats == [GGUF_BLOCKS[kind.lower()].native] * 2 + ["bf16"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ssm.inner_size": 127}, r"nemotron_h\.ssm\.inner_size=127 must be a multiple of nemotron_h\.ssm\.time_step"),
        ({"nextn_predict_layers": 1}, r"nemotron_h\.nextn_predict_layers=1 is not supported"),
        ({"feed_forward_length": [0, 1, 2]}, r"nemotron_h\.feed_forward_length must be a list with a number for each"),
        ({"feed_forward_length": [0, 2**21]}, r"nemotron_h\.feed_forward_length must hold integers from 0 to 1048576"),
    ],
)
def test_a_file_that_contradicts_itself_is_one_clear_line(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "model.gguf", "nemotron_h", OF_ARCHITECTURE["nemotron_h"] | changes)
    with pytest.raises(OperatorError, match=message) as error:
        load_model_config(path)
    assert "\n" not in str(error.value)
