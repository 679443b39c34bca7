"""Models with gated delta networks: configurations and tensors as they are published."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mixers.gated_attention import GatedAttention
from numaserve.workers.layers.mixers.gated_delta import GatedDelta
from numaserve.workers.layers.mlp import Mlp
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.checkpoint import check_checkpoint
from safetensors.torch import load_file
from test_loader import edit_tensors
from test_model_config import write
from test_quantized_loading import assert_same_logits, matrices

from tests.support import checkpoints
from tests.support.models import layers_of, layers_with_experts, the_only
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import save_published, save_qwen3_5, small_qwen3_5, small_qwen3_5_moe

# As published, without what has no meaning here.
ROPE = {
    "mrope_interleaved": True,
    "mrope_section": [11, 11, 10],
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000,
    "rope_type": "default",
}
TEXT_27B: dict[str, Any] = {
    "attention_bias": False,
    "attn_output_gate": True,
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 24,
    "num_hidden_layers": 64,
    "num_key_value_heads": 4,
    "output_gate_type": "swish",
    "rms_norm_eps": 1e-06,
    "rope_parameters": ROPE,
    "tie_word_embeddings": False,
    "vocab_size": 248320,
}
TEXT_35B_A3B: dict[str, Any] = {key: each for key, each in TEXT_27B.items() if key != "intermediate_size"} | {
    "hidden_size": 2048,
    "linear_num_value_heads": 32,
    "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
}
OUTER: dict[str, Any] = {
    "image_token_id": 248056,
    "tie_word_embeddings": False,
    "vision_config": {"depth": 27, "hidden_size": 1152, "out_hidden_size": 5120},
}
QWEN3_5 = OUTER | {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": TEXT_27B}
QWEN3_5_MOE = OUTER | {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": TEXT_35B_A3B}
QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
Tensors = dict[str, torch.Tensor]


def full_layers(config: ModelConfig) -> list[int]:
    return [index for index, block in enumerate(config.decoder.blocks) if isinstance(block.attention, GatedAttention)]


@pytest.mark.parametrize(
    ("values", "value_heads", "heads", "layers"),
    [(QWEN3_5, 48, (24, 4), 64), (QWEN3_5_MOE, 32, (16, 2), 40), (QWEN3_NEXT, 32, (16, 2), 48)],
    ids=["27B", "35B-A3B", "Next"],
)
def test_the_published_models_are_read(
    values: dict[str, Any], value_heads: int, heads: tuple[int, int], layers: int, tmp_path: Path
) -> None:
    config = load_model_config(write(tmp_path, **values))
    delta, attention = the_only(config, GatedDelta), the_only(config, GatedAttention)
    assert (delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim) == (16, value_heads, 128, 128)
    assert (delta.taps, delta.eps) == (4, 1e-6)
    assert (attention.query_heads, attention.kv_heads, attention.head_dim) == (*heads, 256)
    rope = attention.rotation.rope
    assert (rope.kind, rope.theta, rope.rotary_dim) == ("default", 1e7, 64)
    assert (config.num_layers, full_layers(config)) == (layers, list(range(3, layers, 4)))
    assert config.skipped_layers == 1
    assert (config.left_out != ()) == ("vision_config" in values)
    assert load_model_config(tmp_path, ModelSettings(mtp=True)).decoder.predictor is not None


def test_the_experts_are_those_of_the_published_models(tmp_path: Path) -> None:
    for name, values, count, top_k in (("35B", QWEN3_5_MOE, 256, 8), ("80B", QWEN3_NEXT, 512, 10)):
        config = load_model_config(write(tmp_path / name, **values))
        experts = the_only(config, Experts)
        assert (experts.routing.num_experts, experts.routing.top_k, experts.intermediate) == (count, top_k, 512)
        assert (experts.shared, experts.routing.shared_gate) == (512, True)
        assert (experts.routing.renormalize, experts.routing.scoring) == (True, "softmax")
        assert layers_with_experts(config) == tuple(range(config.num_layers))
    dense = load_model_config(write(tmp_path / "27B", **QWEN3_5))
    assert the_only(dense, Mlp).intermediate == 17408


@pytest.mark.parametrize(
    ("config_class", "architecture"),
    [
        (hf.Qwen3_5TextConfig, "Qwen3_5ForCausalLM"),
        (hf.Qwen3_5MoeTextConfig, "Qwen3_5MoeForCausalLM"),
        (hf.Qwen3NextConfig, "Qwen3NextForCausalLM"),
    ],
)
def test_what_a_config_leaves_out_has_the_default_of_transformers(
    config_class: type[hf.PreTrainedConfig], architecture: str, tmp_path: Path
) -> None:
    sizes = {key: TEXT_27B[key] for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")}
    sizes |= {"intermediate_size": 512, "max_position_embeddings": 32768}
    expected = config_class(**sizes)
    config = load_model_config(write(tmp_path, architectures=[architecture], **sizes))
    delta, attention = the_only(config, GatedDelta), the_only(config, GatedAttention)
    assert delta.key_heads == expected.linear_num_key_heads
    assert delta.value_heads == expected.linear_num_value_heads
    assert (delta.key_dim, delta.value_dim) == (expected.linear_key_head_dim, expected.linear_value_head_dim)
    assert (delta.taps, attention.head_dim) == (expected.linear_conv_kernel_dim, expected.head_dim)
    assert attention.kv_heads == expected.num_key_value_heads
    assert attention.rotation.rope.rotary_dim == expected.head_dim // 4
    kinds = [expected.layer_types[index] for index in full_layers(config)]
    assert kinds == ["full_attention"] * expected.layer_types.count("full_attention")
    if hasattr(expected, "num_experts"):
        routing = the_only(config, Experts).routing
        assert (routing.num_experts, routing.top_k) == (expected.num_experts, expected.num_experts_per_tok)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer_types": ["linear_attention", "sliding_attention"] * 32},
            "'sliding_attention', which is not supported",
        ),
        (
            {"layer_types": ["linear_attention"] * 64},
            "all 64 layers are of kind linear_attention; a model of this family",
        ),
        ({"full_attention_interval": 1}, "all 64 layers are of kind full_attention"),
        ({"layer_types": ["linear_attention"]}, "layer_types must be a list of 64 strings"),
        ({"linear_num_value_heads": 40}, "linear_num_value_heads=40 must be a multiple of linear_num_key_heads=16"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be an integer from 2 to 8, not 1"),
        ({"linear_conv_kernel_dim": 9}, "linear_conv_kernel_dim must be an integer from 2 to 8, not 9"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim must be an integer from 1 to 512, not 0"),
        ({"attn_output_gate": False}, "attn_output_gate=False is not supported"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type='sigmoid' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings=True is not supported"),
    ],
)
def test_what_no_family_has_is_one_clear_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write(tmp_path, **QWEN3_5 | {"text_config": TEXT_27B | changes})
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load_model_config(folder)
    assert "\n" not in str(error.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.save(checkpoints.random_model("qwen3_5"), tmp_path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda t: {k: v for k, v in t.items() if "layers.1.linear_attn.conv1d" not in k},
            "lacks model.layers.1.linear_attn.conv1d.weight",
        ),
        (lambda t: {k: v for k, v in t.items() if "A_log" not in k}, "A_log, model.layers.1.linear_attn.A_log"),
        (
            lambda t: {k: v for k, v in t.items() if "layers.3.self_attn.q_n" not in k},
            "lacks model.layers.3.self_attn.q",
        ),
        (lambda t: t | {"model.layers.0.linear_attn.conv1d.bias": torch.ones(384)}, "conv1d.bias"),
        (
            lambda t: t | {"model.layers.0.linear_attn.conv1d.weight": torch.ones(384, 4)},
            "shape [384, 4], but the configuration asks for [384, 1, 4]",
        ),
        (
            lambda t: t | {"model.layers.0.linear_attn.in_proj_z.weight": torch.ones(384, 96)},
            "asks for [240, 96]",
        ),
        (
            lambda t: t | {"model.layers.0.linear_attn.conv1d.weight": torch.ones(384, 1, 4, dtype=torch.int8)},
            "is I8",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_one_clear_line_before_any_worker_starts(
    edit: Callable[[Tensors], Tensors], message: str, folder: Path
) -> None:
    edit_tensors(folder, edit)
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        check_checkpoint(open_model(folder), load_model_config(folder))
    assert "\n" not in str(error.value)


def test_the_text_part_of_a_multimodal_checkpoint_is_found(tmp_path: Path, team: Team) -> None:
    model = checkpoints.random_model("qwen3_5")
    folder = checkpoints.save(model, tmp_path)
    more = {
        "model.visual.blocks.0.attn.qkv.weight": torch.zeros(2),
        "mtp.layers.0.input_layernorm.weight": torch.ones(2),
    }
    edit_tensors(folder, lambda t: {k.replace("model.", "model.language_model.", 1): v for k, v in t.items()} | more)
    text = json.loads((folder / "config.json").read_text())
    outer = OUTER | {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text}
    (folder / "config.json").write_text(json.dumps(outer))
    assert_same_logits(folder, model, 2, team)
    notes = load_model_config(folder).notes
    assert "the checkpoint's vision tower is not loaded: only text is served" in notes


def together(tensors: Tensors) -> Tensors:
    """The tensors of a bf16 checkpoint of Qwen: all experts of a layer in two."""
    found: Tensors = {}
    stacks: dict[str, list[torch.Tensor]] = {}
    for name, each in tensors.items():
        module, _, part = name.removesuffix(".weight").rpartition(".")
        if ".experts." in name:
            stacks.setdefault(f"{module.rpartition('.')[0]}.{part}", []).append(each)
        else:
            found[name] = each
    for at in {name.rpartition(".")[0] for name in stacks}:
        gate, up, down = (torch.stack(stacks[f"{at}.{part}_proj"]) for part in ("gate", "up", "down"))
        found |= {f"{at}.gate_up_proj": torch.cat([gate, up], 1), f"{at}.down_proj": down}
    return found


@pytest.mark.parametrize("tp", [1, 2])
def test_experts_are_read_from_one_tensor_or_from_many(tp: int, tmp_path: Path, team: Team) -> None:
    model = checkpoints.random_model("qwen3_5_moe")
    folder = checkpoints.save(model, tmp_path)
    assert any(".experts.3.up_proj." in name for name in load_file(folder / "model.safetensors"))
    assert_same_logits(folder, model, tp, team)
    edit_tensors(folder, together)
    assert not any(".experts.3." in name for name in load_file(folder / "model.safetensors"))
    assert_same_logits(folder, model, tp, team)


def test_a_layer_can_have_its_experts_in_another_form_than_the_others(tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(
        hf.Qwen3_5MoeTextConfig(
            **checkpoints.sizes(96, 4, 1, 160, layers=2, head_dim=32, moe_intermediate_size=72, num_experts=4),
            **checkpoints.DELTA,
            layer_types=["linear_attention", "full_attention"],
            shared_expert_intermediate_size=40,
            num_experts_per_tok=2,
        )
    )
    folder = checkpoints.save(model, tmp_path)
    edit_tensors(
        folder,
        lambda tensors: (
            together({name: each for name, each in tensors.items() if "layers.1." not in name})
            | {name: each for name, each in tensors.items() if "layers.1." in name}
        ),
    )
    assert_same_logits(folder, model, 1, team)


@pytest.mark.parametrize("make", [small_qwen3_5, small_qwen3_5_moe])
@pytest.mark.parametrize("layout", ["gptq", "awq", "w4a16", "w8a8", "fp8 blocks"])
def test_a_published_checkpoint_is_kept_as_it_is_and_its_gates_stay_bf16(
    layout: str, make: Callable[[], hf.PreTrainedModel], tmp_path: Path, team: Team
) -> None:
    model = make()
    path = save_qwen3_5(model, tmp_path, layout)
    for tp in (1, 3):
        group = assert_same_logits(path, model, tp, team)
        for weights in group:
            delta = weights.config.decoder.blocks[0].attention
            assert isinstance(delta, GatedDelta)
            assert weights.matrix(delta.gates).format == "bf16"
            kept = {weights.matrix(each).format for each in (delta.qkvz, delta.o)}
            assert kept == {LAYOUTS[layout].native}
            assert {matrix.format for matrix in matrices(weights)} == {LAYOUTS[layout].native, "bf16"}


def test_gates_that_are_quantized_all_the_same_are_expanded(tmp_path: Path, team: Team) -> None:
    model = small_qwen3_5()
    path = save_published(model, tmp_path, "gptq")
    for layer in layers_of_model(model):
        for gate in (layer.linear_attn.in_proj_a, layer.linear_attn.in_proj_b):
            gate.weight.data = gate.weight.data.bfloat16().float()
    assert_same_logits(path, model, 2, team)


def layers_of_model(model: hf.PreTrainedModel) -> list[Any]:
    return [layer for layer in model.model.layers if hasattr(layer, "linear_attn")]


def test_all_delta_networks_are_of_one_kind_of_state(folder: Path) -> None:
    config = load_model_config(folder)
    deltas = layers_of(config, GatedDelta)
    assert len({each.cache for each in deltas}) == 1
    shape = config.decoder.shape(config.partition([1]).ranks[0])
    assert [kind.layers for kind in shape.states] == [len(deltas)]
    assert config.has_states
