"""Nemotron-H: configurations and tensors as they are published."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mixers.mamba2 import Mamba2
from numaserve.workers.layers.mlp import Mlp, PlainMlp
from numaserve.workers.layers.stored import GGUF_BLOCKS
from numaserve.workers.models.load import load_model_config
from numaserve.workers.program.rope import UNROTATED
from safetensors.torch import load_file
from test_gguf_source import OF_ARCHITECTURE
from test_gguf_source import write as write_gguf
from test_model_config import write
from test_quantized_loading import assert_same_logits

from tests.support import checkpoints
from tests.support.models import layers_of, the_only

# As published, without what has no meaning here.
NEMOTRON_NANO: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "attention_bias": False,
    "conv_kernel": 4,
    "head_dim": 128,
    "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 64,
    "mamba_proj_bias": False,
    "max_position_embeddings": 262144,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_group": 1,
    "n_groups": 8,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 52,
    "num_key_value_heads": 2,
    "routed_scaling_factor": 2.5,
    "ssm_state_size": 128,
    "tie_word_embeddings": False,
    "time_step_limit": [0.0, math.inf],
    "topk_group": 1,
    "use_bias": False,
    "use_conv_bias": True,
    "vocab_size": 131072,
}


def test_nemotron_is_read_as_published(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path, **NEMOTRON_NANO))
    space, experts, attention = (the_only(config, kind) for kind in (Mamba2, Experts, Attention))
    assert (space.groups, space.heads, space.state_dim, space.head_dim) == (8, 64, 128, 64)
    assert (attention.query_heads, attention.kv_heads, attention.head_dim) == (32, 2, 128)
    assert attention.rotation.rope == UNROTATED
    assert (experts.routing.num_experts, experts.routing.top_k, experts.routing.scale) == (128, 6, 2.5)
    assert (experts.intermediate, experts.shared, experts.has_gates) == (1856, 3712, False)
    assert len(layers_of(config, Mamba2)) == len(layers_of(config, Experts)) == 23
    assert len(layers_of(config, Attention)) == 6
    names = [block.input_norm.module for block in config.decoder.blocks]
    assert names[:4] == ["layers.0.norm", "layers.2.norm", "layers.4.norm", "layers.5.norm"]


def test_layers_of_nemotron_are_listed_or_a_pattern(tmp_path: Path) -> None:
    kinds = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
    pattern = "M-MM*-ME"
    values = {key: each for key, each in NEMOTRON_NANO.items() if key != "hybrid_override_pattern"}
    listed = load_model_config(
        write(tmp_path / "listed", **values, layers_block_type=[kinds[each] for each in pattern])
    )
    assert listed == load_model_config(write(tmp_path / "pattern", **values, hybrid_override_pattern=pattern))
    mlps = [type(block.mlp) for block in listed.decoder.blocks]
    assert mlps == [PlainMlp, type(None), type(None), PlainMlp, Experts]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hybrid_override_pattern": "MEM"}, "holds no layer with attention"),
        ({"hybrid_override_pattern": "M*X"}, "hybrid_override_pattern='X' is not supported"),
        ({"hybrid_override_pattern": "M*EE"}, "layer 3 is an MLP, and must follow a layer with Mamba"),
        ({"hybrid_override_pattern": "EM*"}, "layer 0 is an MLP"),
        ({"hybrid_override_pattern": ""}, "must have from 1 to 1024 layers, not 0"),
        ({"hybrid_override_pattern": None}, "layers_block_type is missing"),
        ({"moe_latent_size": 1024}, "moe_latent_size=1024 is not supported"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act='silu' is not supported"),
        ({"use_bias": True}, "use_bias=True is not supported"),
    ],
)
def test_what_no_model_has_is_one_clear_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load_model_config(write(tmp_path, **NEMOTRON_NANO | changes))
    assert "\n" not in str(error.value)


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
