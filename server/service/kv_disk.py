"""The store of the disk tier, as the options configure it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial
from pathlib import Path

from numaserve.server.http.auth.keys import ApiKeys, Callers
from numaserve.server.kv_disk.fingerprint import launch_facts
from numaserve.server.kv_disk.store import Store, StoreOptions
from numaserve.server.service.assembly import Checked
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import Launch
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.needs import GIB
from numaserve.workers.weights.checkpoint_files import checkpoint_files

_log = logging.getLogger(__name__)


def open_store(checked: Checked, model: ModelConfig) -> Store | None:
    """Return the store of the served model, whose folder is locked; None: the tier is off.

    Raises `OperatorError` for a folder that cannot be used.
    """
    config, launch = checked.config, checked.deployment.launches[0]
    if config.kv_disk_path is None:
        return None
    if config.pp > 1:
        raise OperatorError("--kv-disk-path cannot be combined with --pp: leave out one of them")
    if not (config.prefix_cache and checked.deployment.reuses_prefixes):
        _log.warning("--kv-disk-path has no effect: this server caches no prefixes")
        return None
    facts = {
        "isa": checked.instruction_set,
        "long context": _long_ropes(model, launch.capacity.context_length),
    }
    return Store(
        StoreOptions(
            config.kv_disk_path,
            int(config.kv_disk_gib * GIB),
            checked.name,
            _files(checked.path, model, launch),
            launch_facts(launch) | facts,
            partial(cache_groups, checked.key_sources.keys),
            None if config.kv_disk_max_age is None else round(config.kv_disk_max_age),
        )
    )


def cache_groups(keys: Callers | None) -> Collection[str] | None:
    """Return the cache groups of all clients. None: they are not known, because a gateway has the keys."""
    if keys is None:
        return {""}
    return keys.cache_groups() if isinstance(keys, ApiKeys) else None


def _files(path: Path, model: ModelConfig, launch: Launch) -> list[Path]:
    try:
        files = checkpoint_files(path, model.folders, launch.settings.mmproj)
        return files + ([] if launch.draft is None else checkpoint_files(Path(launch.draft.model)))
    except OSError as error:
        raise OperatorError(f"{path}: the files of the model cannot be listed ({error.strerror})") from error


def _long_ropes(model: ModelConfig, context_length: int) -> list[bool]:
    """Return which rotations have the frequencies of long contexts. Nothing else in a page depends on the context
    length, which may follow from the memory that is free at the start."""
    return sorted(
        context_length > rope.original_max_position for rope in model.decoder.ropes if rope.kind == "longrope"
    )
