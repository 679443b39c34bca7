"""Checkpoints with the tensors that the layers of a family declare, for families that transformers does not have."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from numaserve.workers.models.load import load_model_config
from safetensors.torch import save_file

from tests.support.launches import count


def save_random(folder: Path, config: Mapping[str, object], **given: torch.Tensor) -> Path:
    """Write a checkpoint of random tensors; those whose names end with the name of a `given` one are that one."""
    count("checkpoints")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    random = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for parameter in load_model_config(folder).decoder.parameters():
        for source in parameter.sources:
            noise = torch.randn(source.shape, generator=random)
            values = noise * source.shape[-1] ** -0.5 if source.is_matrix else 1 + 0.1 * noise
            chosen = [each for name, each in given.items() if name in source.name.split(".")]
            name = f"model.{source.name}.weight" if source.is_matrix else f"model.{source.name}"
            tensors[name] = (chosen[0] if chosen else values).bfloat16()
    save_file(tensors, folder / "model.safetensors")
    return folder
