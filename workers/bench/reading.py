"""The best speed at which a checkpoint can be read: the denominator of loading."""

import mmap
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

_PIECE = 8 << 20
_BUFFER = 256 << 10


def checkpoint_files(path: Path) -> list[Path]:
    """The files that hold the weights."""
    return [path] if path.is_file() else sorted(path.glob("*.safetensors"))


def read_seconds(files: Sequence[Path], threads: int, repetitions: int) -> tuple[float, float]:
    """Return the seconds to read whole files on `threads` threads, the best of some repetitions.

    The first figure is for reading into small buffers, the second for reading into new memory, the least that a copy
    costs. A first, unmeasured repetition fills the page cache.
    """
    with ThreadPoolExecutor(threads) as pool:
        pieces = [(file, offset) for file in files for offset in range(0, file.stat().st_size, _PIECE)]

        def once(read: Callable[[tuple[Path, int]], None]) -> float:
            begin = time.perf_counter()
            list(pool.map(read, pieces))
            return time.perf_counter() - begin

        once(_through_buffer)
        return min(map(once, repeat(_through_buffer, repetitions))), _into_new_memory(pool, pieces, repetitions)


def _through_buffer(piece: tuple[Path, int]) -> None:
    file, first = piece
    buffer = bytearray(_BUFFER)
    with file.open("rb", buffering=0) as stream:
        for offset in range(first, first + _PIECE, _BUFFER):
            os.preadv(stream.fileno(), [buffer], offset)


def _into_new_memory(pool: ThreadPoolExecutor, pieces: Sequence[tuple[Path, int]], repetitions: int) -> float:
    def read(index: int) -> None:
        file, offset = pieces[index]
        place = memoryview(memory)[index * _PIECE : (index + 1) * _PIECE]
        with file.open("rb", buffering=0) as stream:
            os.preadv(stream.fileno(), [place], offset)
        place.release()

    samples = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        with mmap.mmap(-1, max(1, len(pieces)) * _PIECE) as memory:
            list(pool.map(read, range(len(pieces))))
            samples.append(time.perf_counter() - begin)
    return min(samples)
