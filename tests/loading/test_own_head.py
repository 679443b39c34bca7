"""Heads that are said to be tied to the embeddings, in checkpoints that have both."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from safetensors.torch import load_file, save_file

from tests.support import checkpoints

HEADS = {"llama-tied": ("model.embed_tokens.weight", "lm_head.weight")}
HEADS["gemma3-nested-tied"] = ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight")


@pytest.fixture(params=HEADS)
def tied(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, str]:
    folder = checkpoints.save(checkpoints.random_model(request.param), tmp_path / "model")
    return folder, *HEADS[request.param]


def add_head(folder: Path, name: str, head: torch.Tensor) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, name: head}, folder / "model.safetensors", metadata={"format": "pt"})


def about_heads(config: ModelConfig) -> list[str]:
    return [note for note in config.notes if "head" in note]


def test_an_equal_head_is_tied(tied: tuple[Path, str, str]) -> None:
    folder, embedding, head = tied
    add_head(folder, head, load_file(folder / "model.safetensors")[embedding].clone())
    config = load_model_config(folder)
    assert config.decoder.head is not None
    assert config.decoder.head.tied
    assert about_heads(config) == []


@pytest.mark.parametrize("change", ["first", "last", "type", "quantized"])
def test_another_head_is_used_and_told_of(tied: tuple[Path, str, str], change: str) -> None:
    folder, embedding, head = tied
    values = load_file(folder / "model.safetensors")[embedding].clone()
    if change == "type":
        values = values.float()
    elif change == "quantized":
        head = head.replace("weight", "qweight")
    else:
        values.view(-1)[0 if change == "first" else -1] += 1
    add_head(folder, head, values)
    config = load_model_config(folder)
    assert config.decoder.head is not None
    assert not config.decoder.head.tied
    (note,) = about_heads(config)
    assert "ties the output head" in note
    pooled = load_model_config(folder, ModelSettings(pooled=True))
    assert about_heads(pooled) == []


def test_a_head_and_embeddings_are_found_in_two_files(tied: tuple[Path, str, str]) -> None:
    folder, embedding, head = tied
    values = load_file(folder / "model.safetensors")[embedding] + 1
    save_file({head: values}, folder / "more.safetensors")
    assert load_model_config(folder).decoder.head.tied  # type: ignore[union-attr]  # no index names it: it is not read
    (folder / "model.safetensors").rename(folder / "first.safetensors")
    files = {embedding: "first.safetensors", head: "more.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    config = load_model_config(folder)
    assert config.decoder.head is not None
    assert not config.decoder.head.tied


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, b"\x02" + b"\0" * 7 + b"[]", b"\x0b" + b"\0" * 7 + b'{"a": null}']
)
def test_files_that_are_not_sound_are_left_to_the_loader(tied: tuple[Path, str, str], content: bytes) -> None:
    folder, *_ = tied
    shutil.copy(folder / "model.safetensors", folder / "kept.safetensors")
    (folder / "model.safetensors").write_bytes(content)
    config = load_model_config(folder)
    assert config.decoder.head is not None
    assert config.decoder.head.tied
