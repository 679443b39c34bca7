"""Experts as quantizers save them: taken out of the stacks of transformers, and named as in MLPs."""

import copy
import re
from pathlib import Path

import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from test_loader import assert_same_logits, edit_tensors
from test_quantized_loading import assert_same_logits as assert_same_quantized
from torch import nn

from tests.support import checkpoints
from tests.support.published_checkpoints import save_published, small_lfm2_moe

_MLP_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def save_apart(model: hf.PreTrainedModel, folder: Path) -> Path:
    """Save a model as llm-compressor and AutoRound do: transformers names what they put in the place of a stack."""
    apart = copy.deepcopy(model).to(torch.bfloat16)
    for name, stack in list(apart.named_modules()):
        if name.endswith(".experts"):
            apart.set_submodule(name, nn.ModuleList(map(_mlp, stack.gate_up_proj, stack.down_proj)))
    apart.save_pretrained(folder)
    return folder


def _mlp(gate_up: torch.Tensor, down: torch.Tensor) -> nn.ModuleDict:
    weights = dict(zip(("gate_proj", "up_proj", "down_proj"), (*gate_up.chunk(2), down), strict=True))
    made = nn.ModuleDict({name: nn.Linear(*weight.T.shape, bias=False) for name, weight in weights.items()})
    made.load_state_dict({f"{name}.weight": weight for name, weight in weights.items()})
    return made.to(torch.bfloat16)


@pytest.mark.parametrize("case", ["mixtral", "minimax_m2", "lfm2_moe"])
def test_experts_may_have_the_names_of_quantizers(case: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.random_model(case)
    assert_same_logits(save_apart(model, tmp_path), model, 1, team)


@pytest.mark.parametrize("layout", ["auto-round", "w4a16"])
def test_quantized_experts_may_have_them_too(layout: str, tmp_path: Path, team: Team) -> None:
    model = small_lfm2_moe()
    folder = save_published(model, tmp_path, layout)
    edit_tensors(folder, lambda tensors: {_renamed(name): tensor for name, tensor in tensors.items()})
    assert_same_quantized(folder, model, 1, team)


def _renamed(name: str) -> str:
    return re.sub(r"(\.experts\.\d+)\.(w\d)\.", lambda found: f"{found[1]}.{_MLP_NAMES[found[2]]}.", name)


def test_names_of_no_known_form_are_in_the_message_with_what_the_file_lacks(tmp_path: Path, team: Team) -> None:
    model = checkpoints.random_model("mixtral")
    folder = save_apart(model, tmp_path)
    edit_tensors(folder, lambda tensors: {name.replace("gate_proj", "gate"): each for name, each in tensors.items()})
    with pytest.raises(OperatorError) as error:
        assert_same_logits(folder, model, 1, team)
    at = "model.layers.0.block_sparse_moe.experts.0"
    assert f"lacks {at}.w1.weight" in str(error.value)
    assert f"holds {at}.down_proj.weight" in str(error.value)
    assert "fetch" not in str(error.value)
