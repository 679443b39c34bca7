"""Models with state spaces: configurations and tensors as they are published."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.mixers.mamba2 import Mamba2
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.weights.checkpoint import check_checkpoint
from test_loader import edit_tensors

from tests.support import checkpoints
from tests.support.models import the_only

Tensors = dict[str, torch.Tensor]


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
