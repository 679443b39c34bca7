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
from numaserve.workers.layers.mixers.gated_delta import GatedDelta
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.weights.checkpoint import check_checkpoint
from safetensors.torch import load_file
from test_loader import edit_tensors
from test_quantized_loading import assert_same_logits

from tests.support import checkpoints
from tests.support.families import row
from tests.support.models import layers_of
from tests.support.published_checkpoints import save_published, small_qwen3_5

OUTER: dict[str, Any] = {
    "image_token_id": 248056,
    "tie_word_embeddings": False,
    "vision_config": {"depth": 27, "hidden_size": 1152, "out_hidden_size": 96},
}
Tensors = dict[str, torch.Tensor]


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
            **row.DELTA,
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
