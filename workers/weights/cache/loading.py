"""Loads a rank's weights, from the cache where it has them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from numaserve.kernels import Team
from numaserve.workers.interface.protocol import WeightsCache, WeightsOrigin
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.models.load import ModelFiles
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.cache.errors import CacheError
from numaserve.workers.weights.cache.folder import CacheFolder, CacheKey
from numaserve.workers.weights.cache.key import SETTLED_S, Checkpoint, cache_key, look_at, now_ns
from numaserve.workers.weights.cache.transfer import fill, save
from numaserve.workers.weights.checkpoint import open_source
from numaserve.workers.weights.loader import load_weights
from numaserve.workers.weights.weights import Weights

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedWeights:
    """A rank's weights, where they came from, and how long that took."""

    weights: Weights
    origin: WeightsOrigin
    seconds: float
    # Writes the weights to the cache, see `transfer.save`. None if they came from there or are not to be cached.
    save: Callable[[Callable[[], None]], int] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(matrix.nbytes for matrix in self.weights.matrices)


@dataclass(frozen=True)
class RankLoader:
    """Loads a rank's `part` of a model."""

    files: ModelFiles
    config: ModelConfig
    part: RankPart
    positions: int  # the longest context served
    cache: WeightsCache | None = None

    def load(self, team: Team, report: Callable[[int], None]) -> LoadedWeights:
        """Load on the team's threads; `report` gets the bytes so far.

        Raises `OperatorError` when the checkpoint does not fit the configuration. A problem with the cache is only a
        warning. A checkpoint too new to be cached is not a problem, and is logged at level `info`.
        """
        begin = time.perf_counter()
        cached = None if self.cache is None else self._open(self.cache)
        if cached is None:
            return LoadedWeights(self._make(team, report), "checkpoint", time.perf_counter() - begin)
        weights = self._read(cached, team, report)
        if weights is not None:
            return LoadedWeights(weights, "cache", time.perf_counter() - begin)
        weights = self._make(team, report)
        return LoadedWeights(weights, "checkpoint", time.perf_counter() - begin, self._saving(cached, weights))

    def _make(self, team: Team, report: Callable[[int], None], *, stored: bool = False) -> Weights:
        return load_weights(
            open_source(self.files, self.config),
            self.config,
            self.part,
            team,
            report,
            positions=self.positions,
            stored=stored,
        )

    def _open(self, cache: WeightsCache) -> _Entry | None:
        try:
            CacheFolder(Path(cache.folder)).close()
            look = partial(look_at, self.files.path, self.config.folders, self.part.partition.settings.mmproj)
            checkpoint = look()
        except (CacheError, OSError) as error:
            _log.warning("the packed weights are not cached: %s", error)
            return None
        key = cache_key(checkpoint, self.config, self.part)
        return _Entry(Path(cache.folder), cache.limit_bytes, key, look, checkpoint, now_ns())

    def _read(self, entry: _Entry, team: Team, report: Callable[[int], None]) -> Weights | None:
        """Return the weights from the cache; None if the cache does not have them."""
        try:
            with CacheFolder(entry.folder) as folder:
                fd = folder.open(entry.key.file_name)
                if fd is None:
                    return None
                try:
                    weights = self._make(team, report, stored=True)
                    fill(weights.matrices, fd, entry.key, team, report)
                    os.utime(fd)  # used just now: the last to be removed
                finally:
                    os.close(fd)
        except CacheError as error:
            path = entry.folder / entry.key.file_name
            _log.warning("%s is not used: %s; packing the weights and caching them again", path, error)
            return None
        return weights

    def _saving(self, entry: _Entry, weights: Weights) -> Callable[[Callable[[], None]], int] | None:
        if not entry.checkpoint.is_settled(entry.looked_ns):
            if self.part.rank == 0:  # all ranks have the same files
                _log.info(
                    "the packed weights are not cached at this start: a checkpoint file changed less than %g s before"
                    " it was read, so its modification time may not show a later change; the next start caches them",
                    SETTLED_S,
                )
            return None
        group_bytes = sum(part.weight_bytes() for part in self.part.partition.ranks)
        # `write` lives as long as the rank: with `self` it would keep the checkpoint open.
        path = self.files.path

        def write(between: Callable[[], None]) -> int:
            try:
                unchanged = entry.look() == entry.checkpoint
            except OSError:
                unchanged = False
            if not unchanged:
                raise CacheError("the checkpoint has changed since it was loaded")
            with CacheFolder(entry.folder) as folder:
                return save(
                    weights.matrices,
                    folder,
                    entry.key,
                    model=str(path),
                    group_bytes=group_bytes,
                    limit=entry.limit_bytes,
                    between=between,
                )

        return write


@dataclass(frozen=True)
class _Entry:
    folder: Path
    limit_bytes: int
    key: CacheKey
    look: Callable[[], Checkpoint]  # identifies the checkpoint; keeps none of its files open
    checkpoint: Checkpoint
    looked_ns: int  # when the checkpoint was identified
