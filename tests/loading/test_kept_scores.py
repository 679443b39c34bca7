"""Scores of transformers are computed once, and again when anything that they depend on changes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.workers.interface.settings import WeightFormats

from tests.support import checkpoints, kept_scores
from tests.support.fake_quantization import play
from tests.support.parity import transformers_scores

TEXTS = [[3, 4, 5, 6, 7], [8, 9, 10]]
FORMATS = WeightFormats("int4", activations="int8")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_scores, "FOLDER", tmp_path / "kept")


def files(folder: Path) -> int:
    return sum(1 for _ in (folder / "kept").glob("*.npz"))


def test_the_same_scores_are_read_and_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = transformers_scores(checkpoints.random_model("llama-untied"), TEXTS)
    monkeypatch.setattr(hf.LlamaForCausalLM, "forward", None)
    again = transformers_scores(checkpoints.random_model("llama-untied"), TEXTS)
    assert np.array_equal(again.logprobs, first.logprobs)
    assert np.array_equal(again.top, first.top)
    assert files(tmp_path) == 1


def one_weight(model: hf.PreTrainedModel) -> None:
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1


def one_field(model: hf.PreTrainedModel) -> None:
    model.config.rms_norm_eps *= 2


@pytest.mark.parametrize("change", [one_weight, one_field, hf.PreTrainedModel.bfloat16])
def test_another_model_has_scores_of_its_own(change: Callable[[hf.PreTrainedModel], object], tmp_path: Path) -> None:
    transformers_scores(checkpoints.random_model("llama-untied"), TEXTS)
    model = checkpoints.random_model("llama-untied")
    change(model)
    transformers_scores(model, TEXTS)
    assert files(tmp_path) == 2


def test_a_played_model_is_kept_under_the_name_of_what_it_plays_and_not_without(tmp_path: Path) -> None:
    plain = transformers_scores(checkpoints.random_model("llama-untied"), TEXTS)
    played = play(checkpoints.random_model("llama-untied"), FORMATS)
    unnamed = transformers_scores(played, TEXTS)
    assert files(tmp_path) == 1
    named = transformers_scores(played, TEXTS, FORMATS)
    assert files(tmp_path) == 2
    assert np.array_equal(named.logprobs, unnamed.logprobs)
    assert not np.array_equal(named.logprobs, plain.logprobs)
