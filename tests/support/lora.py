"""Random low-rank adapters, as PEFT writes them, and transformers models that have them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers as hf
from safetensors.torch import save_file
from torch import nn

from tests.support.gguf_files import finish
from tests.support.gguf_models import save_gguf

# Modules that adapters cannot update: routers, heads, what latent attention absorbs, and predictors.
_LEFT_OUT = {"gate", "router", "lm_head", "kv_b_proj", "experts", "shared_expert_gate"}
Floats = npt.NDArray[np.float32]
_STRENGTH = 0.5  # of the update of a matrix, as a part of the matrix


class Adapted(nn.Module):
    """A linear module with an adapter, as PEFT computes it."""

    def __init__(self, base: nn.Linear, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.a, self.b = (nn.Parameter(each.to(base.weight.dtype), requires_grad=False) for each in (a, b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + (x @ self.a.T) @ self.b.T * self.scale


@dataclass(frozen=True)
class RandomAdapter:
    """A and B of each module by its name in the model, values of bf16 in fp32, and the scale."""

    rank: int
    alpha: float
    by_root: bool
    matrices: dict[str, tuple[torch.Tensor, torch.Tensor]]

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.by_root else self.rank)

    def save(self, folder: Path, *, dtype: torch.dtype = torch.float32, prefix: str = "", **fields: Any) -> Path:
        """Write the folder of the adapter, with other `fields` in its configuration."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"base_model.model.{prefix}{name}.lora_{side}.weight": value.to(dtype).contiguous()
            for name, pair in self.matrices.items()
            for side, value in zip("AB", pair, strict=True)
        }
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "use_rslora": self.by_root,
            "target_modules": sorted({name.rpartition(".")[2] for name in self.matrices}),
            "bias": "none",
            "rank_pattern": {},
            "alpha_pattern": {},
            "modules_to_save": None,
            "use_dora": False,
        }
        (folder / "adapter_config.json").write_text(json.dumps(config | fields))
        return folder

    def applied(self, model: hf.PreTrainedModel) -> hf.PreTrainedModel:
        """The model with the adapter, which replaces modules of it."""
        for name, (a, b) in self.matrices.items():
            parent, _, last = name.rpartition(".")
            base = model.get_submodule(name)
            setattr(model.get_submodule(parent), last, Adapted(base, a, b, self.scale))
        return model


def save_gguf_adapter(adapter: RandomAdapter, model: hf.PreTrainedModel, folder: Path) -> Path:
    """Write an adapter as a GGUF file. GGUF files of the model show by matrices of equal columns and of equal rows
    where they have the rows of each B and the columns of each A."""
    clone = copy.deepcopy(model)
    modules = {name: clone.get_submodule(name).weight.data for name in adapter.matrices}
    for weight in modules.values():
        weight.zero_()
    empty = {name for name, matrix in _tensors(save_gguf(clone, folder / "probe.gguf", "F32")) if not matrix.any()}
    tensors: dict[str, Floats] = {}
    for name, (a, b) in adapter.matrices.items():
        lines: dict[tuple[str, str], list[Floats]] = {}
        for index in range(adapter.rank):
            for side, values in (("a", a[index : index + 1]), ("b", b[:, index : index + 1])):
                modules[name].copy_(values.expand(modules[name].shape))
                for tensor, matrix in _tensors(save_gguf(clone, folder / "probe.gguf", "F32")):
                    if tensor in empty and matrix.any():
                        lines.setdefault((tensor, side), []).append(matrix[0] if side == "a" else matrix[:, 0])
        modules[name].zero_()
        for (tensor, side), found in lines.items():
            tensors[f"{tensor}.lora_{side}"] = np.ascontiguousarray(np.stack(found, axis=side == "b"))
    return write_gguf_adapter(folder / "adapter.gguf", tensors, alpha=adapter.scale * adapter.rank)


def write_gguf_adapter(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], *, kind: str = "lora", alpha: float = 8.0, name: str = "llama"
) -> Path:
    """Write an adapter as llama.cpp's converter does."""
    writer = gguf.GGUFWriter(path, name)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", alpha)
    for tensor, values in tensors.items():
        writer.add_tensor(tensor, values)
    finish(writer)
    return path


def _tensors(path: Path) -> list[tuple[str, Floats]]:
    return [
        (each.name, np.array(each.data, np.float32)) for each in gguf.GGUFReader(path).tensors if len(each.shape) > 1
    ]


def adapted_modules(model: hf.PreTrainedModel) -> Iterator[tuple[str, nn.Linear]]:
    """The modules of a model that adapters can update."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not _LEFT_OUT & set(name.split(".")):
            yield name, module


def random_adapter(
    model: hf.PreTrainedModel,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    by_root: bool = False,
    seed: int = 1,
    wanted: Callable[[str], bool] = lambda name: True,
) -> RandomAdapter:
    """An adapter of all `wanted` modules that can have one. Its updates are half as large as the matrices."""
    generator = torch.Generator().manual_seed(seed)
    scale = alpha / (math.sqrt(rank) if by_root else rank)
    matrices = {}
    for name, module in adapted_modules(model):
        if not wanted(name):
            continue
        rows, columns = module.weight.shape
        a = torch.randn(rank, columns, generator=generator) * columns**-0.5
        b = torch.randn(rows, rank, generator=generator) * (_STRENGTH * 1.5 / (scale * math.sqrt(rank)))
        matrices[name] = (a.bfloat16().float(), b.bfloat16().float())
    return RandomAdapter(rank, alpha, by_root, matrices)
