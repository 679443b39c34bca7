"""Models with state spaces: configurations and tensors as they are published."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mixers.mamba2 import Mamba2
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import UNROTATED
from numaserve.workers.weights.checkpoint import check_checkpoint
from safetensors.torch import load_file
from test_loader import edit_tensors
from test_model_config import write
from test_quantized_loading import assert_same_logits, matrices

from tests.support import checkpoints
from tests.support.models import the_only
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import save_published, small_granite_hybrid

# As published, without what has no meaning here.
GRANITE_TINY: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12,
    "hidden_size": 1536,
    "intermediate_size": 512,
    "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
    "logits_scaling": 6,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 48,
    "mamba_proj_bias": False,
    "max_position_embeddings": 131072,
    "num_attention_heads": 12,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 40,
    "num_key_value_heads": 4,
    "num_local_experts": 64,
    "position_embedding_type": "nope",
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "shared_intermediate_size": 1024,
    "tie_word_embeddings": True,
    "vocab_size": 100352,
}
Tensors = dict[str, torch.Tensor]


def attending(config: ModelConfig) -> list[int]:
    return [index for index, block in enumerate(config.decoder.blocks) if isinstance(block.attention, Attention)]


def test_granite_is_read_as_published(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **GRANITE_TINY))
    space, experts = the_only(config, Mamba2), the_only(config, Experts)
    assert (space.groups, space.heads, space.state_dim, space.head_dim, space.taps) == (1, 48, 128, 64, 4)
    assert (space.eps, space.least_step, space.most_step, space.convolution_has_bias) == (1e-5, 0.0, math.inf, True)
    assert (experts.routing.num_experts, experts.routing.top_k) == (64, 6)
    assert (experts.intermediate, experts.shared) == (512, 1024)
    assert (experts.routing.scoring, experts.routing.renormalize) == ("softmax", True)
    assert attending(config) == [5, 15, 25, 35]
    assert the_only(config, Attention).rotation.rope == UNROTATED


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mamba_n_heads": 50}, "mamba_n_heads=50 times mamba_d_head=64 must be mamba_expand * hidden"),
        ({"mamba_n_groups": 5}, "mamba_n_heads=48 must be a multiple of mamba_n_groups=5"),
        ({"mamba_proj_bias": True}, "mamba_proj_bias=True is not supported"),
        ({"mamba_d_conv": 9}, "mamba_d_conv must be an integer from 2 to 8, not 9"),
        ({"time_step_limit": [1.0]}, "time_step_limit must be a list of two numbers in ascending order"),
        ({"time_step_limit": [2.0, 1.0]}, "time_step_limit must be a list of two numbers"),
        ({"time_step_limit": [0.0, math.nan]}, "time_step_limit must be a list of two numbers"),
    ],
)
def test_what_no_model_has_is_one_clear_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load_model_config(write(tmp_path, **GRANITE_TINY | changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if "D" not in k}, "lacks model.layers.0.mamba.D"),
        (lambda t: {k: v for k, v in t.items() if "conv1d.bias" not in k}, "lacks model.layers.0.mamba.conv1d.bias"),
        (lambda t: t | {"model.layers.0.mamba.in_proj.bias": torch.ones(432)}, "in_proj.bias"),
        (lambda t: t | {"model.layers.0.mamba.in_proj.weight": torch.ones(431, 96)}, "asks for [432, 96]"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_one_clear_line(
    edit: Callable[[Tensors], Tensors], message: str, tmp_path: Path
) -> None:
    folder = checkpoints.save(checkpoints.random_model("granite4-h"), tmp_path)
    edit_tensors(folder, edit)
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        check_checkpoint(open_model(folder), load_model_config(folder))
    assert "\n" not in str(error.value)


def test_steps_without_a_limit_are_saved_in_two_ways(tmp_path: Path) -> None:
    folder = checkpoints.save(checkpoints.random_model("granite4-h"), tmp_path)
    assert json.loads((folder / "config.json").read_text())["time_step_limit"] == [0.0, {"__float__": "Infinity"}]
    assert the_only(load_model_config(folder), Mamba2).most_step == math.inf


@pytest.mark.parametrize("layout", ["gptq", "w4a16", "w8a8", "fp8 blocks"])
def test_a_published_checkpoint_is_kept_as_it_is_but_for_steps(layout: str, tmp_path: Path, team: Team) -> None:
    model = small_granite_hybrid()
    path = save_published(model, tmp_path, layout)
    inner = model.model.layers[0].mamba.in_proj.weight.data[-4:]
    inner.copy_(inner.bfloat16().float())
    for tp in (1, 2):
        for weights in assert_same_logits(path, model, tp, team):
            space = weights.config.decoder.blocks[0].attention
            assert isinstance(space, Mamba2)
            assert weights.matrix(space.steps).format == "bf16"
            assert {matrix.format for matrix in matrices(weights)} == {LAYOUTS[layout].native, "bf16"}


def test_experts_of_granite_are_in_one_tensor(tmp_path: Path) -> None:
    folder = checkpoints.save(checkpoints.random_model("granite4-h-moe"), tmp_path)
    names = load_file(folder / "model.safetensors")
    assert "model.layers.0.block_sparse_moe.input_linear.weight" in names
    assert isinstance(load_model_config(folder).decoder.blocks[0].mlp, Experts)
