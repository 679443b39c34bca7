"""The name of packed weights in the cache: equal names mean equal bytes.

The name covers all inputs of the bytes: the checkpoint, the settings, and the code that packs.

The checkpoint's contents are not read, which would take as long as packing them. A file is identified by its name,
size, inode, times of last modification and change, and its beginning. Programs cannot set the time of change (ctime),
so an edit in place is noticed even if the modification time was restored. A checkpoint that was copied, or whose owner
was changed, is packed again without need.

The code is identified by its own bytes: those of the native module and of the sources that read and pack weights. A
version number of the layout could be forgotten. The instruction set is in the name although no layout depends on it
today, because it costs nothing.
"""

import functools
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numaserve.workers.layers
import numaserve.workers.models
import numaserve.workers.program
import numaserve.workers.weights
from numaserve.kernels import isa
from numaserve.kernels.build import build_digest
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.layers.stored import Stored, StoredMatrices
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.cache.folder import CacheKey
from numaserve.workers.weights.checkpoint_files import checkpoint_files

_HEAD_BYTES = 1 << 18  # holds the table of tensors, or most of it
SETTLED_S = 2.0  # no file system in use has coarser times
_PACKAGES = (numaserve.workers.layers, numaserve.workers.models, numaserve.workers.program, numaserve.workers.weights)
_LIBRARIES = ("gguf", "numpy", "safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, identified without reading its weights."""

    digest: bytes
    changed_ns: int  # when one of its files was last changed

    def is_settled(self, now_ns: int) -> bool:
        """Return whether a change after `now_ns`, the time of the look, would be visible: file times have a
        granularity."""
        return now_ns - self.changed_ns > SETTLED_S * 1e9


def look_at(model: Path, folders: Sequence[str] = (), mmproj: str | None = None) -> Checkpoint:
    """Identify a checkpoint, see `checkpoint_files`. Raises `OSError`."""
    digest = hashlib.blake2b(digest_size=32)
    changed = 0
    for path in checkpoint_files(model, folders, mmproj):
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        stat = path.stat()
        changed = max(changed, stat.st_ctime_ns)
        _add(digest, path.name, stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, head)
    return Checkpoint(digest.digest(), changed)


def cache_key(checkpoint: Checkpoint, config: ModelConfig, part: RankPart) -> CacheKey:
    """Return the key of the weights that a rank packs."""
    digest, divided = hashlib.blake2b(digest_size=16), part.partition
    # The fields of a dataclass have the order of its definition.
    fields = repr(replace(config, stored={}))
    stored = sorted(_modules_by_kind(config.stored).items())
    # All settings except those known not to matter: a setting that was forgotten costs a start, not wrong answers.
    _add(digest, checkpoint.digest, fields, stored, divided.shares, divided.settings.of_weights(), code_digest(), isa())
    return CacheKey(digest.hexdigest(), part.rank, divided.world_size)


def _modules_by_kind(stored: StoredMatrices) -> dict[str, list[str]]:
    """Group modules that are quantized alike: tens of thousands of experts are described once."""
    kinds: dict[Stored, list[str]] = {}
    for module in sorted(stored):
        kinds.setdefault(stored[module], []).append(module)
    return {repr(kind): modules for kind, modules in kinds.items()}


@functools.cache
def code_digest() -> bytes:
    """Return a digest of the code that reads and packs weights."""
    digest = hashlib.blake2b(digest_size=32)
    _add(digest, build_digest(), *(version(name) for name in _LIBRARIES))
    for package in _PACKAGES:
        folder = Path(package.__path__[0])
        for path in sorted(folder.rglob("*.py")):
            _add(digest, str(path.relative_to(folder)), path.read_bytes())
    return digest.digest()


def now_ns() -> int:
    """Return the time of the clock that file systems use."""
    return time.time_ns()


def _add(digest: hashlib.blake2b, *values: object) -> None:
    """Add each value with its length: otherwise the end of one could be taken for the beginning of the next."""
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
