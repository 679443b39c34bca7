"""The check of the pooling that sentence-transformers' files in a model's folder declare."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import CONFIG_BYTES, is_there, parse_json, read_json, read_text

_POOLING = "pooling_mode_lasttoken"
_SERVED = frozenset({"Transformer", "Pooling", "Normalize"})


def check_pooling(model: Path) -> None:
    """Raise `OperatorError` if the model at `model` was trained for another way of making embeddings.

    A model without these files is accepted, because the operator has chosen its task.
    """
    path = model / "modules.json"
    if not model.is_dir() or not is_there(path):
        return
    for kind, folder in _modules(path):
        if kind not in _SERVED:
            raise OperatorError(f"{path}: the model's embeddings need a module of type {kind}, which is not supported")
        if Path(folder).is_absolute() or ".." in Path(folder).parts:  # a checkpoint must not reach elsewhere
            raise OperatorError(f"{path}: the module {kind} lies outside the model's folder. Download the model again")
        config = model / folder / "config.json"
        if kind == "Pooling" and is_there(config):
            _check_mode(config, read_json(config))


def _modules(path: Path) -> Iterable[tuple[str, str]]:
    """Return the kind of each module, and its folder."""
    try:
        listed = parse_json(read_text(path, CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"{path} is not valid JSON ({error}). Download the model again") from error
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            yield str(each.get("type", "")).rpartition(".")[2], str(each.get("path", ""))


def _check_mode(path: Path, config: dict[str, Any]) -> None:
    modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if modes and modes != [_POOLING]:
        raise OperatorError(f"{path}: the model's pooling is {', '.join(modes)}; only {_POOLING} is supported")
