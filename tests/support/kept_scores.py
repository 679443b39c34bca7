"""Results of transformers on tiny models, kept on disk: computing them takes longer than serving the same model.

A result is found by everything that it depends on: the weights and the configuration of the model, what it computes,
the versions of the libraries, and the processor's instructions.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import transformers as hf

from tests.support.trees import ROOT

FOLDER = ROOT / "build" / "reference-scores"

_LIBRARIES = (torch.__version__, hf.__version__, torch.backends.cpu.get_cpu_capability())

Arrays = Mapping[str, npt.NDArray[np.generic]]


def kept(key: str, compute: Callable[[], Arrays]) -> Arrays:
    """Return the arrays that are kept under `key`, a file name, or compute and keep them.

    Several processes may do so at once: a file appears complete.
    """
    path = FOLDER / f"{key}.npz"
    if path.exists():
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    arrays = compute()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=FOLDER, suffix=".part", delete=False) as file:
        np.savez(file, **arrays)
    Path(file.name).replace(path)
    return arrays


def key_of_files(files: Iterable[Path], *more: object) -> str:
    """Return a digest of what models are read from, by names and contents, and of `more`, by its representation."""
    found = hashlib.sha1(repr((*_LIBRARIES, more)).encode(), usedforsecurity=False)
    for path in files:
        content = path.read_bytes()
        found.update(f"{path.name} {len(content)}".encode())
        found.update(content)
    return found.hexdigest()


def key_of(model: hf.PreTrainedModel, *more: object) -> str:
    """Return a digest of a model and of `more`, by their representation."""
    config = model.config
    about = (type(model).__name__, config.to_json_string(use_diff=False), config._attn_implementation, _LIBRARIES, more)
    # Processors compute it in half of the time of others.
    found = hashlib.sha1(repr(about).encode(), usedforsecurity=False)
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy())
    return found.hexdigest()


def is_played(model: hf.PreTrainedModel) -> bool:
    """Return True if a module computes something other than its class says, which no key of the model shows."""
    return any("forward" in vars(each) or each._forward_pre_hooks or each._forward_hooks for each in model.modules())
