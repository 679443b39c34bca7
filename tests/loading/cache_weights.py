"""Small matrices and keys for the tests of the cache."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numaserve.kernels import PackedMatrix, Team
from numaserve.workers.weights.cache.folder import CacheFolder, CacheKey
from numaserve.workers.weights.cache.transfer import fill, save

GIB = 1 << 30
SHAPES = ((64, 96, "bf16"), (5000, 512, "bf16"), (0, 64, "bf16"), (100, 70, "int8"))  # the second has two checksums


def key(name: str, rank: int = 0, world_size: int = 1) -> CacheKey:
    """A key whose group begins with `name`, in hexadecimal digits."""
    return CacheKey(name.ljust(32, "0"), rank, world_size)


def empty_matrices() -> list[PackedMatrix]:
    return [PackedMatrix(n, k, format) for n, k, format in SHAPES]


def random_matrices(seed: int = 0) -> list[PackedMatrix]:
    matrices = empty_matrices()
    for matrix in matrices:
        np.asarray(matrix.buffer())[:] = np.random.default_rng(seed).integers(0, 256, matrix.nbytes, dtype=np.uint8)
    return matrices


def contents(matrices: list[PackedMatrix]) -> list[bytes]:
    return [bytes(matrix.buffer()) for matrix in matrices]


def write(
    path: Path,
    name: CacheKey,
    matrices: list[PackedMatrix],
    *,
    group_bytes: int = 0,
    limit: int = GIB,
    between: Callable[[], None] = lambda: None,
) -> int:
    with CacheFolder(path) as folder:
        return save(matrices, folder, name, model="/models/some", group_bytes=group_bytes, limit=limit, between=between)


def read(path: Path, name: CacheKey, team: Team) -> list[bytes] | None:
    """The bytes under a key, None where there are none."""
    matrices = empty_matrices()
    with CacheFolder(path) as folder, contextlib.ExitStack() as exits:
        fd = folder.open(name.file_name)
        if fd is None:
            return None
        exits.enter_context(open(fd, "rb"))  # noqa: PTH123 to close it
        fill(matrices, fd, name, team, lambda _: None)
    return contents(matrices)
