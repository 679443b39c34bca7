"""The image store: the pixels of the tiles of all requests, in memory that workers map."""

from __future__ import annotations

import mmap
import os
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256

from numaserve.server.engine.admission.reserve import RESERVE
from numaserve.server.engine.types import QueueFull
from numaserve.server.scheduler.images import Tile
from numaserve.workers.interface.images import ImageInput

_RETRY_AFTER_S = 1


class StoreFull(QueueFull):
    """The image store has too few free tiles for a request: HTTP 429."""


class ImageStore:
    """A memfd of `num_tiles` tiles, each uint8 [height, width, 3] of at most `tile_bytes`. For one event loop; tiles
    may end in any thread.

    The store outlives launches of workers, which map it read-only. A tile is free again when its `Tile` object dies.

    The decoding process does not write to this memory itself: code that escapes from a decoder would change the images
    of other clients.
    """

    def __init__(self, fd: int, settings: ImageInput, num_tiles: int) -> None:
        """Take over the memfd `fd`, which has the size of `num_tiles` tiles."""
        self.fd = fd
        self.num_tiles = num_tiles
        self.settings = settings
        self._pixels = mmap.mmap(fd, num_tiles * settings.tile_bytes)
        self._free = [*reversed(range(num_tiles))]  # the last used is first, so that less memory is touched
        self._owners: dict[int, str] = {}  # of all other tiles
        self._held: Counter[str] = Counter()  # tiles of each client
        self._ended: deque[int] = deque()  # not free yet: tiles that ended in any thread

    @contextmanager
    def reserve(self, client: str, count: int) -> Iterator[Reservation]:
        """Return a context with `count` tiles for a request of `client`. Raises `StoreFull`.

        A request gets all its tiles at once, before any work on its images: requests that each get a part would all be
        refused in the end. Tiles that are unused at the end of the context are free again.

        A client leaves `RESERVE` of the tiles that it holds for other clients.
        """
        reservation = Reservation(self._take(client, count), self._write, self._ended)
        try:
            yield reservation
        finally:
            reservation.close()

    def close(self) -> None:
        """Close the memory. May be called twice."""
        if self.fd >= 0:
            self._pixels.close()
            os.close(self.fd)
            self.fd = -1

    def _take(self, client: str, count: int) -> list[int]:
        while self._ended:
            self._set_free(self._ended.popleft())
        left, held = len(self._free) - count, self._held[client] + count
        if left < held * RESERVE:
            raise StoreFull(
                f"The image store is full: {len(self._owners)} of its {self.num_tiles} tiles are in use, and the "
                f"request needs up to {count}. Retry after {_RETRY_AFTER_S} s.",
                _RETRY_AFTER_S,
            )
        numbers = [self._free.pop() for _ in range(count)]
        self._owners.update(dict.fromkeys(numbers, client))
        self._held[client] = held
        return numbers

    def _set_free(self, number: int) -> None:
        owner = self._owners.pop(number)
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._free.append(number)

    def _write(self, number: int, pixels: memoryview, grid: tuple[int, int]) -> Tile:
        digest = sha256(self.settings.digest)
        digest.update(repr(grid).encode())  # equal pixels of another shape are another image
        digest.update(pixels)
        tile = Tile(number, digest.digest(), *grid)
        weakref.finalize(tile, self._ended.append, number).atexit = False
        if len(pixels) > self.settings.tile_bytes:  # they would be those of the next tile too
            raise ValueError(f"{len(pixels)} bytes of a tile of at most {self.settings.tile_bytes} bytes")
        start = number * self.settings.tile_bytes
        self._pixels[start : start + len(pixels)] = pixels
        return tile


class Reservation:
    """Tiles that are set aside for a request. A thread may write while another closes the reservation."""

    def __init__(
        self, numbers: list[int], write: Callable[[int, memoryview, tuple[int, int]], Tile], unused: deque[int]
    ) -> None:
        self._numbers = numbers
        self._write = write
        self._unused = unused

    def write(self, pixels: memoryview, grid: tuple[int, int]) -> Tile:
        """Store the pixels of a tile, uint8 [height, width, 3], whose features are `grid` rows and columns. Raises
        `IndexError` if no tile is left, or once closed."""
        return self._write(self._numbers.pop(), pixels, grid)

    def close(self) -> None:
        """Give back the tiles that are not written."""
        with suppress(IndexError):  # the test of the list and its end are not one
            while True:
                self._unused.append(self._numbers.pop())
