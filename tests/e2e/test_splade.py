"""SPLADE models on ranks: their sparse vectors are those of transformers, with the same bits in any company."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers as hf
from numaserve.workers.interface.settings import WeightFormats
from numaserve.workers.interface.vectors import SparseEntries
from pooled_steps import answers

from tests.support import encoders
from tests.support.rank_group import RankGroup, WorkerFailed
from tests.support.sentence_folder import write_splade

TEXTS = encoders.texts(7)
NAMES = ("bert", "distilbert", "modernbert", "xlm-roberta")


def saved(name: str, model: hf.PreTrainedModel, folder: Path) -> Path:
    return write_splade(encoders.save(name, model, folder), pooling_strategy="max", activation_function="relu")


def make_group(folder: Path, tp: int = 1, **more: Any) -> RankGroup:
    return RankGroup(folder, tp, context_length=encoders.CONTEXT, pooled=True, **more)


def in_steps(group: RankGroup, prompts: Sequence[list[int]]) -> npt.NDArray[np.float64]:
    """The maxima of the logits of prompts in steps of a few, fp64 [prompts, vocabulary]."""
    found = [each for at in range(0, len(prompts), 3) for each in answers(group, prompts[at : at + 3], at)]
    return np.stack([np.frombuffer(each, "<f4") for each in found]).astype(np.float64)


def weights(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.log1p(np.maximum(logits, 0))


def cosines(some: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return (some * others).sum(1) / (np.linalg.norm(some, axis=1) * np.linalg.norm(others, axis=1))


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_sparse_vectors_are_those_of_transformers(name: str, tp: int, isa: str, tmp_path: Path) -> None:
    model = encoders.random_splade(name)
    exact = weights(encoders.maxima(model, TEXTS))
    assert 0.1 < (exact > 0).mean() < 0.9
    with make_group(saved(name, model, tmp_path), tp, isa=isa) as group:
        found = weights(in_steps(group, TEXTS))
    assert cosines(found, exact).min() >= 0.9999
    rounded = weights(encoders.maxima(model.bfloat16(), TEXTS))
    assert np.linalg.norm(found - exact) <= 1.1 * np.linalg.norm(rounded - exact)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_exact(name: str, tmp_path: Path) -> None:
    model = encoders.random_splade(name)
    exact = weights(encoders.maxima(model, TEXTS))
    with make_group(saved(name, model, tmp_path), backend="reference") as group:
        assert cosines(weights(in_steps(group, TEXTS)), exact).min() >= 0.9999


@pytest.mark.parametrize("name", NAMES)
def test_quantized_weights_keep_vectors_near(name: str, tmp_path: Path) -> None:
    model = encoders.random_splade(name)
    exact = weights(encoders.maxima(model, TEXTS))
    formats = WeightFormats(linear="int8", lm_head="int8")
    with make_group(saved(name, model, tmp_path), 2, formats=formats) as group:
        assert cosines(weights(in_steps(group, TEXTS)), exact).min() >= 0.999


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_text_has_the_same_bits_in_any_company(name: str, tp: int, isa: str, tmp_path: Path) -> None:
    with make_group(saved(name, encoders.random_splade(name), tmp_path), tp, isa=isa, threads=2) as group:
        alone = [answers(group, [text], step)[0] for step, text in enumerate(TEXTS)]
        assert len(set(alone)) == len(TEXTS)
        assert answers(group, TEXTS[:4], 10) + answers(group, TEXTS[4:], 11) == alone
        assert answers(group, TEXTS[::-1][:3], 12) == alone[::-1][:3]


def test_positive_entries_are_answered_where_they_are_asked_for(tmp_path: Path) -> None:
    with make_group(saved("bert", encoders.random_splade("bert"), tmp_path), 2) as group:
        whole = [np.frombuffer(each, "<f4") for each in answers(group, TEXTS[:3], 0)]
        entries = [SparseEntries.decoded(each) for each in answers(group, TEXTS[:3], 1, "sparse")]
    for vector, (ids, values) in zip(whole, entries, strict=True):
        assert ids.tolist() == np.flatnonzero(vector > 0).tolist()
        assert values.tolist() == vector[ids].tolist()


def test_a_model_without_sparse_vectors_refuses_to_make_one(tmp_path: Path) -> None:
    folder = encoders.save("bert", encoders.random_encoder("bert"), tmp_path)
    with (
        make_group(folder, 2) as group,
        pytest.raises(WorkerFailed, match="slot 0 of the step asks for a sparse vector, and the model has none"),
    ):
        answers(group, TEXTS[:1], 0, "sparse")


def test_a_head_of_its_own_is_not_that_of_the_embeddings(tmp_path: Path) -> None:
    model = encoders.random_splade("bert", tie_word_embeddings=False)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(-1)
    exact = weights(encoders.maxima(model, TEXTS))
    with make_group(saved("bert", model, tmp_path)) as group:
        assert cosines(weights(in_steps(group, TEXTS)), exact).min() >= 0.9999
