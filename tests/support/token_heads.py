"""The heads of single tokens next to a checkpoint, as BGE-M3 has them."""

from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

COLUMNS = 40


class Heads(NamedTuple):
    """Two linear layers whose values fp16 and bf16 have."""

    vectors: torch.nn.Linear
    weights: torch.nn.Linear

    def columns(self, states: torch.Tensor) -> npt.NDArray[np.float64]:
        """The vectors and the weights of tokens with these hidden states, fp64 [tokens, columns + 1]."""
        with torch.inference_mode():
            return torch.cat([deepcopy(each).double()(states) for each in self], dim=1).numpy()


def random_heads(hidden: int = 72, columns: int = COLUMNS) -> Heads:
    """Heads with random weights. About half of the tokens have a positive weight."""
    generator = torch.Generator().manual_seed(3)
    heads = Heads(torch.nn.Linear(hidden, columns), torch.nn.Linear(hidden, 1))
    with torch.no_grad():
        for parameter in (each for head in heads for each in head.parameters()):
            scale = 0.1 if parameter.ndim == 1 else hidden**-0.5
            parameter.copy_((scale * torch.randn(parameter.shape, generator=generator)).bfloat16())
        heads.weights.bias.sub_(0.5)
    return heads


def save_heads(folder: Path, heads: Heads, dtype: torch.dtype = torch.float16) -> Path:
    """Write both files, as FlagEmbedding does. Return `folder`."""
    for name, head in zip(("colbert_linear", "sparse_linear"), heads, strict=True):
        torch.save(deepcopy(head).to(dtype).state_dict(), folder / f"{name}.pt")
    return folder
