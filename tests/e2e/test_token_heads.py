"""The heads of BGE-M3 on ranks: vectors and weights of single tokens, next to the vector of the text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from numaserve.workers.interface.settings import WeightFormats
from numaserve.workers.interface.vectors import SparseEntries, decoded_rows
from pooled_steps import answers

from tests.support import encoders
from tests.support.rank_group import RankGroup, WorkerFailed
from tests.support.token_heads import COLUMNS, random_heads, save_heads

TEXTS = encoders.texts(7)
EXACT = np.float64


def make_group(folder: Path, tp: int = 1, **more: Any) -> RankGroup:
    return RankGroup(folder, tp, context_length=encoders.CONTEXT, pooled=True, **more)


def saved(folder: Path, dtype: torch.dtype = torch.float16) -> Path:
    encoders.save("xlm-roberta", encoders.random_encoder("xlm-roberta"), folder, "cls")
    return save_heads(folder, random_heads(), dtype)


@pytest.fixture(scope="module")
def exact() -> list[npt.NDArray[EXACT]]:
    """The vectors and the weights of the tokens of each text, fp64 [tokens, columns + 1]."""
    states = encoders.hidden_states(encoders.random_encoder("xlm-roberta"), TEXTS)
    return [random_heads().columns(each) for each in states]


def of_ids(text: list[int], weights: npt.NDArray[EXACT]) -> npt.NDArray[EXACT]:
    """The highest positive weight of each token of the vocabulary."""
    whole = np.zeros(encoders.VOCAB)
    for token, weight in zip(text, weights, strict=True):
        whole[token] = max(whole[token], weight)
    return whole


def in_steps(group: RankGroup, form: Any) -> Iterator[bytes]:
    for at in range(0, len(TEXTS), 3):
        yield from answers(group, TEXTS[at : at + 3], at, form)


def cosines(some: npt.NDArray[EXACT], others: npt.NDArray[EXACT]) -> npt.NDArray[EXACT]:
    return (some * others).sum(1) / (np.linalg.norm(some, axis=1) * np.linalg.norm(others, axis=1))


def check_near(group: RankGroup, exact: list[npt.NDArray[EXACT]], least: float) -> None:
    for columns, answer in zip(exact, in_steps(group, "tokens"), strict=True):
        rows = decoded_rows(answer).astype(EXACT)
        assert rows.shape == (len(columns) - 1, COLUMNS)
        if len(rows):
            assert cosines(rows, columns[1:, :COLUMNS]).min() >= least
    for text, columns, answer in zip(TEXTS, exact, in_steps(group, "sparse"), strict=True):
        ids, values = SparseEntries.decoded(answer)
        whole, expected = np.zeros(encoders.VOCAB), of_ids(text, columns[:, COLUMNS])
        whole[ids] = values
        assert ids.tolist() == sorted(set(ids.tolist()))
        assert (whole @ expected) / (np.linalg.norm(whole) * np.linalg.norm(expected)) >= least


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_columns_of_tokens_are_those_of_the_layers(
    exact: list[npt.NDArray[EXACT]], tp: int, isa: str, tmp_path: Path
) -> None:
    assert 0.2 < np.mean([(each[:, COLUMNS] > 0).mean() for each in exact]) < 0.8
    with make_group(saved(tmp_path), tp, isa=isa) as group:
        check_near(group, exact, 0.9999)


def test_the_error_of_weights_is_that_of_bf16(exact: list[npt.NDArray[EXACT]], isa: str, tmp_path: Path) -> None:
    states = encoders.hidden_states(encoders.random_encoder("xlm-roberta").bfloat16(), TEXTS)
    rounded = [random_heads().columns(each.bfloat16().double()) for each in states]
    with make_group(saved(tmp_path), isa=isa) as group:
        found = [decoded_rows(each).astype(EXACT) for each in in_steps(group, "tokens")]
    expected, in_bf16 = (np.concatenate([each[1:, :COLUMNS] for each in all_of]) for all_of in (exact, rounded))
    assert np.linalg.norm(np.concatenate(found) - expected) <= 1.1 * np.linalg.norm(in_bf16 - expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_reads_the_same_files(
    exact: list[npt.NDArray[EXACT]], dtype: torch.dtype, tmp_path: Path
) -> None:
    with make_group(saved(tmp_path, dtype), backend="reference") as group:
        check_near(group, exact, 0.9999)


def test_quantized_weights_keep_columns_near(exact: list[npt.NDArray[EXACT]], tmp_path: Path) -> None:
    with make_group(saved(tmp_path), 2, formats=WeightFormats(linear="int8")) as group:
        check_near(group, exact, 0.999)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_text_has_the_same_bits_in_any_company(tp: int, isa: str, tmp_path: Path) -> None:
    with make_group(saved(tmp_path), tp, isa=isa, threads=2) as group:
        for step, form in enumerate(("whole", "sparse", "tokens")):
            alone = [answers(group, [text], 100 * step + at, form)[0] for at, text in enumerate(TEXTS)]
            assert len(set(alone)) == len(TEXTS)
            assert answers(group, TEXTS[:3], 100 * step + 50, form) == alone[:3]
            mixed = answers(group, [*TEXTS[4:6], TEXTS[0]], 100 * step + 51, "whole", form, "sparse")
            assert mixed[1] == alone[5]


def test_the_vector_of_a_text_is_that_without_the_heads(tmp_path: Path) -> None:
    with make_group(saved(tmp_path), 2) as group:
        with_heads = answers(group, TEXTS[:3], 0), answers(group, TEXTS[:3], 1, "sparse", "whole", "tokens")
        pages = group.profile()
    for name in ("colbert_linear.pt", "sparse_linear.pt"):
        (tmp_path / name).unlink()
    with make_group(tmp_path, 2) as group:
        assert answers(group, TEXTS[:3], 0) == with_heads[0]
    assert with_heads[1][1] == with_heads[0][1]
    assert pages


@pytest.mark.parametrize(
    ("lost", "refused", "message"),
    [
        ("colbert_linear.pt", "tokens", "slot 0 of the step asks for vectors of tokens, and the model has none"),
        ("sparse_linear.pt", "sparse", "slot 0 of the step asks for a sparse vector, and the model has none"),
    ],
)
def test_each_head_may_be_alone(
    lost: str, refused: Any, message: str, exact: list[npt.NDArray[EXACT]], tmp_path: Path
) -> None:
    (saved(tmp_path) / lost).unlink()
    with make_group(tmp_path, 2) as group:
        if refused == "tokens":
            ids, values = SparseEntries.decoded(answers(group, TEXTS[:1], 0, "sparse")[0])
            np.testing.assert_allclose(values, of_ids(TEXTS[0], exact[0][:, COLUMNS])[ids], atol=0.05)
        else:
            rows = decoded_rows(answers(group, TEXTS[:1], 0, "tokens")[0])
            assert cosines(rows, exact[0][1:, :COLUMNS]).min() >= 0.9999
        with pytest.raises(WorkerFailed, match=message):
            answers(group, TEXTS[:1], 1, refused)
