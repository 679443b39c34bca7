"""A look at an adapter before any rank loads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from numaserve.workers.adapters.binding import count_matrices
from numaserve.workers.adapters.opened import bits_of, open_adapter
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.spec import ModelConfig


@dataclass(frozen=True)
class AdapterDescription:
    """An adapter that can be loaded."""

    rank: int  # the largest one of its matrices
    mean_rank: float  # of all matrices that adapters can update, weighted by their rows and columns
    matrices: int  # of the checkpoint, that it updates
    digest: str  # SHA-256 of its files, in hexadecimal digits
    nbytes: int  # of its weights


def describe_adapter(path: Path, config: ModelConfig, settings: ModelSettings) -> AdapterDescription:
    """Return the description of the adapter at `path`, a folder or a .gguf file. All of it is read.

    Raises `OperatorError` for an adapter that cannot be applied whole to the model with these settings.
    """
    with open_adapter(path, config, settings) as adapter:
        updates = adapter.files.updates.values()
        for update in updates:
            bits_of(update.a, adapter.files.where)
            bits_of(update.b, adapter.files.where)
        return AdapterDescription(
            rank=max(update.rank for update in updates),
            mean_rank=sum(update.rank * update.lines for update in updates) / config.decoder.adapted_lines,
            matrices=count_matrices(adapter.binding),
            digest=adapter.files.digest,
            nbytes=adapter.files.nbytes,
        )
