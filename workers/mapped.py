"""Files that are mapped into memory, and what reading them takes of it."""

import mmap

import numpy as np
import numpy.typing as npt

RELEASE_BYTES = 64 << 20


class MappedFile:
    """A whole file. `data` is a view of it, and as a plain array: a slice of NumPy's memmap takes ten times as long to
    make, and a checkpoint may have ten thousands."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        self.data: npt.NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)

    def release(self) -> None:
        """Give back the memory that reading it has taken. It can be read again."""
        self._mapped.madvise(mmap.MADV_DONTNEED)


class ReadFiles:
    """Gives that memory back every now and then, and then of whole files: a page that is touched brings neighbours
    with it, up to megabytes of them, that releasing tensor by tensor would leave."""

    def __init__(self) -> None:
        self._files: set[MappedFile] = set()
        self._nbytes = 0

    def add(self, file: MappedFile, nbytes: int) -> None:
        """Note that a number of bytes of the file were read and are not needed for now."""
        self._files.add(file)
        self._nbytes += nbytes
        if self._nbytes >= RELEASE_BYTES:
            for each in self._files:
                each.release()
            self._files.clear()
            self._nbytes = 0
