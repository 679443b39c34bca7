"""The heads of single tokens next to a checkpoint: which models have them, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.layers.token_head import TokenHead
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.needs import rank_needs
from numaserve.workers.weights.checkpoint import check_checkpoint, open_source

from tests.support import encoders
from tests.support.machines import OPTIONS
from tests.support.sentence_folder import write_splade
from tests.support.token_heads import COLUMNS, random_heads, save_heads

POOLED = ModelSettings(pooled=True)


def configured(folder: Path) -> ModelConfig:
    return load_model_config(folder, POOLED)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    encoders.save("xlm-roberta", encoders.random_encoder("xlm-roberta"), tmp_path, "cls")
    return save_heads(tmp_path, random_heads())


def test_the_files_decide_which_heads_there_are(folder: Path) -> None:
    assert configured(folder).decoder.token_head == TokenHead(72, COLUMNS, has_weights=True)
    check_checkpoint(open_model(folder), configured(folder))
    (folder / "sparse_linear.pt").unlink()
    assert configured(folder).decoder.token_head == TokenHead(72, COLUMNS, has_weights=False)
    (folder / "colbert_linear.pt").unlink()
    assert configured(folder).decoder.token_head is None
    save_heads(folder, random_heads())
    (folder / "colbert_linear.pt").unlink()
    assert configured(folder).decoder.token_head == TokenHead(72, 0, has_weights=True)


def test_the_tensors_of_the_files_are_those_of_the_checkpoint(folder: Path) -> None:
    config, heads = configured(folder), random_heads()
    source = open_source(open_model(folder), config)
    weight, bias = (source.tensor(f"colbert_linear.{name}") for name in ("weight", "bias"))
    assert (weight.dtype, weight.shape, bias.shape) == ("f16", (COLUMNS, 72), (COLUMNS,))
    expected = heads.vectors.weight.detach().half().numpy()
    np.testing.assert_array_equal(weight.data.view(np.float16).reshape(COLUMNS, 72), expected)
    source.release(weight)
    source.release(source.tensor("embeddings.word_embeddings.weight"))


def test_other_models_do_not_read_them(folder: Path, tmp_path: Path) -> None:
    assert load_model_config(folder).decoder.token_head is None
    model = encoders.random_encoder("bert", masked=True)
    sparse = save_heads(write_splade(encoders.save("bert", model, tmp_path / "splade")), random_heads())
    assert configured(sparse).decoder.token_head is None
    decoder = save_heads(encoders.save("qwen3", encoders.random_encoder("qwen3"), tmp_path / "qwen3"), random_heads())
    assert configured(decoder).decoder.token_head is None


@pytest.mark.parametrize(
    ("file", "tensors", "message"),
    [
        (
            "colbert_linear.pt",
            {"weight": (COLUMNS, 64), "bias": (COLUMNS,)},
            r"\[40, 64\], and the model needs \[40",
        ),
        ("sparse_linear.pt", {"weight": (2, 72), "bias": (2,)}, r"\[2, 72\], and the model needs \[1, 72\]"),
        ("sparse_linear.pt", {"weight": (1, 72)}, "does not hold the weight and the bias of a linear layer"),
        ("sparse_linear.pt", {"weight": (72,), "bias": (1,)}, "does not hold the weight and the bias"),
        ("colbert_linear.pt", {"weight": (0, 72), "bias": (0,)}, r"vectors of 0 columns \(limit 16384\)"),
    ],
)
def test_layers_that_do_not_fit_are_refused(
    file: str, tensors: dict[str, tuple[int, ...]], message: str, folder: Path
) -> None:
    torch.save({name: torch.zeros(shape) for name, shape in tensors.items()}, folder / file)
    with pytest.raises(OperatorError, match=f"{file}: .*{message}.*remove it to serve the model without it"):
        configured(folder)


def test_a_bias_of_another_size_is_refused(folder: Path) -> None:
    torch.save({"weight": torch.zeros(COLUMNS, 72), "bias": torch.zeros(3)}, folder / "colbert_linear.pt")
    with pytest.raises(OperatorError, match=r"colbert_linear.bias has shape \[3\], but the configuration asks for"):
        check_checkpoint(open_model(folder), configured(folder))


def test_the_plan_has_room_for_the_columns_of_a_step(folder: Path) -> None:
    config = configured(folder)
    options = replace(OPTIONS, settings=POOLED)
    plain = replace(config, decoder=replace(config.decoder, token_head=None))
    with_head, without = (
        rank_needs(options, each, each.partition([1, 1], POOLED)).scratch[0] for each in (config, plain)
    )
    assert with_head - without == 4 * 512 * (72 + COLUMNS + 1)
