"""Adapters in folders as PEFT writes them: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from numaserve.workers.adapters.low_rank import AdapterFiles, LowRank
from numaserve.workers.adapters.peft_config import PeftConfig, read_peft_config
from numaserve.workers.adapters.private_copy import private_copy
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import CONFIG_BYTES, is_there, parse_json, read_file
from numaserve.workers.models.config.safetensors_files import open_safetensors
from numaserve.workers.weights.safetensors_source import SafetensorsSource

CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
# "base_model.model." stands before the name of the module; older files name the adapter, "default", too.
_NAME = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")


@contextmanager
def open_peft(folder: Path, limit: int) -> Iterator[AdapterFiles]:
    """Open the adapter in `folder`, whose weights have at most `limit` bytes. It lasts as long as the context.

    Raises `OperatorError` for a folder that has no adapter, and for an adapter that does more than add low-rank
    matrices.
    """
    config = read_file(folder / CONFIG, CONFIG_BYTES)
    try:
        values = parse_json(config)
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"{folder / CONFIG}: not valid JSON ({error}); save the adapter again") from error
    if not isinstance(values, dict):
        raise OperatorError(f"{folder / CONFIG}: not a JSON object; save the adapter again")
    settings = read_peft_config(values, folder / CONFIG)
    with private_copy(_weights_of(folder), limit) as copy:
        source = SafetensorsSource([open_safetensors(copy.path)])
        digest = hashlib.sha256(hashlib.sha256(config).digest() + bytes.fromhex(copy.digest)).hexdigest()
        yield AdapterFiles(str(folder), "peft", _updates(source, settings, folder), digest, copy.nbytes)


def _weights_of(folder: Path) -> Path:
    path = folder / _WEIGHTS
    if is_there(path):
        return path
    if is_there(folder / "adapter_model.bin"):
        raise OperatorError(
            f"{folder}: holds adapter_model.bin but no {_WEIGHTS}; pickled weights can run code and are never opened: "
            "save the adapter with safe_serialization=True"
        )
    raise OperatorError(f"{path}: missing; give the folder that save_pretrained of PEFT has written")


def _updates(source: SafetensorsSource, config: PeftConfig, folder: Path) -> dict[str, LowRank]:
    sides: dict[str, dict[str, str]] = {}
    for name in source.names():
        found = _NAME.fullmatch(name)
        if found is None:
            raise OperatorError(f"{folder}: tensor {name[:200]!r} {_reason(name)}")
        names = sides.setdefault(found["module"], {})
        if names.setdefault(found["side"], name) != name:
            raise OperatorError(
                f"{folder}: tensor {name[:200]!r} is in the file under two names; save the adapter again"
            )
    updates = {}
    for module, names in sides.items():
        if len(names) < 2:
            raise OperatorError(f"{folder}: module {module[:200]!r} lacks one of lora_A and lora_B; save it again")
        update = LowRank(source.tensor(names["A"]), source.tensor(names["B"]), config.scale_of(module))
        if len(update.a.shape) != 2 or update.rank != config.rank_of(module):
            raise OperatorError(
                f"{folder}: module {module[:200]!r} has an A of shape {list(update.a.shape)}, and {CONFIG} gives it "
                f"the rank {config.rank_of(module)}; save the adapter again"
            )
        updates[module] = update
    return updates


def _reason(name: str) -> str:
    """The reason why a tensor of that name is refused."""
    if "lora_magnitude_vector" in name:
        return "is of DoRA, which is not supported; train the adapter without use_dora"
    if "lora_embedding_" in name:
        return "changes the embeddings, which is not supported; leave them out of target_modules"
    if name.endswith(".bias"):
        return "is a bias, which is not supported; train the adapter with bias none"
    return "is neither lora_A nor lora_B of a module; only adapters of the type LORA are supported"
