"""The decoding of images: off the event loop, bounded, fair among clients, and once for equal images of a scope."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import NamedTuple

import msgspec
from numaserve.server.common.fair_lru import FairLru
from numaserve.server.confined.worker import BeyondLimits, ConfinedWorker, WorkerUnavailable, WorkFailed
from numaserve.server.engine.types import NotReady
from numaserve.server.images import exchange
from numaserve.server.images.encoded import digest_of, slices
from numaserve.server.images.geometry import most_tiles
from numaserve.server.images.store import ImageStore, Reservation
from numaserve.server.images.types import SMALLER, ImageLimits, ImageProblem, Picture, too_many_bytes
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.scheduler.client import Client
from numaserve.server.text.executor import Executor

_PROCESSES = 2
_MAX_REQUESTS = 64
_CPU_SECONDS = 10.0  # for one image; the largest allowed takes about two
_SECONDS = 120.0  # wall time; the process has a small share of a core that workers need
_BASE_BYTES = 384 * 2**20  # the interpreter with its libraries, and the file
_PIXEL_BYTES = 20  # of a pixel before resizing: five copies of 4 bytes while a transparent image is put on white
_HEAD_BYTES = 4096
_LINE_BREAKS = 1.03  # two after each 76 characters
_PADDING = 2  # characters


class _Key(NamedTuple):
    """The key of a cached picture."""

    scope: CacheScope
    digest: bytes  # SHA-256 of the text
    whole: bool


class ImageDecoder:
    """Decodes images in confined processes, and caches the pictures. For one event loop.

    A client has one process at a time, so that images which take the longest allowed time do not stop the images of
    other clients.

    Only requests of one scope find a picture, as they find cached prefixes: an image that takes no time would reveal
    that another client has sent it. The problem with an image is found, too: clients resend a bad image in each turn.
    """

    def __init__(self, store: ImageStore, limits: ImageLimits, metrics: Metrics) -> None:
        """Start a process. Half of the store's tiles are for pictures of earlier requests."""
        settings = store.settings
        self._store = store
        self.limits = limits
        self._metrics = metrics
        self._most = most_tiles(settings, limits.pixels)
        self._pictures: FairLru[_Key, Picture | ImageProblem] = FairLru(store.num_tiles * settings.tile_bytes // 2)
        self._in_work: dict[tuple[str, _Key], asyncio.Event] = {}
        self._digests = Executor("image-digest", threads=1, max_requests=_MAX_REQUESTS, waiting="images")
        self._executor = Executor("image", threads=_PROCESSES, max_requests=_MAX_REQUESTS, waiting="images", each=1)
        self._workers = [self._new_worker()]
        self._idle = [*self._workers]
        self._closed = False

    async def decode(
        self, encoded: Sequence[str], scope: CacheScope, client: Client, *, whole: frozenset[int] = frozenset()
    ) -> list[Picture | ImageProblem]:
        """Return the picture of each image in base64, or the problem with it; images at the indices `whole` are made
        with few details.

        Raises `QueueFull` if too many requests wait or the image store is full, and `NotReady` if a process fails or
        this is closed.
        """
        problems = [self._too_large(text) for text in encoded]
        keys: dict[int, _Key] = {}  # of the images that have none of these
        with self._digests.admitted():
            for index, text in enumerate(encoded):
                if problems[index] is None:
                    digest = await self._digests.run(partial(digest_of, text))
                    keys[index] = _Key(scope, digest, index in whole)
        texts = {key: encoded[index] for index, key in keys.items()}
        found = {key: self._pictures.get(key) for key in texts}
        missing = [key for key, each in found.items() if each is None]
        if missing:
            with self._executor.admitted(), self._store.reserve(client.name, len(missing) * self._most) as reservation:
                for key in missing:
                    work = partial(self._decode, texts[key], reservation, whole=key.whole)
                    found[key] = await self._once(client, key, work)
        for key in (Counter(keys.values()) - Counter(missing)).elements():  # `_once` has counted the others
            self._count_found(found[key])
        answers = [problem or found[keys[index]] for index, problem in enumerate(problems)]
        return [each for each in answers if each is not None]

    def close(self) -> None:
        """Decode nothing more, and end the processes. The store stays open."""
        self._closed = True
        for worker in tuple(self._workers):
            worker.close()
        self._digests.close()
        self._executor.close()

    def _too_large(self, text: str) -> ImageProblem | None:
        """Return the problem with a text that is too long. The process counts the bytes exactly; a text of line breaks
        alone is refused here."""
        nbytes = len(text) * 3 // 4
        if nbytes <= self.limits.file_bytes * _LINE_BREAKS + _PADDING:
            return None
        return too_many_bytes(nbytes, self.limits)

    def _count_found(self, found: Picture | ImageProblem | None) -> None:
        if isinstance(found, Picture):
            self._metrics.image_found()

    async def _once(
        self, client: Client, key: _Key, work: Callable[[], Picture | ImageProblem]
    ) -> Picture | ImageProblem:
        """Return the answer of `work`, unless another request of the client gets it in the meantime.

        Requests of other clients are not waited for: their turn may come later.
        """
        own = client.name, key
        while (busy := self._in_work.get(own)) is not None:
            await busy.wait()
        if (found := self._pictures.get(key)) is not None:
            self._count_found(found)
            return found
        self._in_work[own] = asyncio.Event()
        try:
            made = await self._executor.run(work)
        finally:
            self._in_work.pop(own).set()
        if self._pictures.get(key) is None:  # a client of the same scope may have decoded the image
            tiles = len(made.tiles) if isinstance(made, Picture) else 0
            self._pictures.put(client.name.encode(), key, made, tiles * self._store.settings.tile_bytes)
        return made

    def _decode(self, text: str, reservation: Reservation, *, whole: bool) -> Picture | ImageProblem:
        """Return the picture, whose pixels are in the store, or the problem with the image; runs in a thread."""
        head = exchange.WHOLE if whole else exchange.SPLIT
        try:
            with self._idle_worker() as worker:
                begin = time.monotonic()
                data = worker.ask_in_parts(len(head) + len(text), lambda: chain((head,), slices(text)))
            seconds = time.monotonic() - begin
            answer, tiles = exchange.decode(data, self._store.settings)
        except BeyondLimits as error:
            return ImageProblem("image_too_large", f"The image cannot be decoded: {error}. {SMALLER}")
        except WorkFailed as error:
            raise NotReady(f"Images cannot be decoded: {error}.") from error
        except WorkerUnavailable as error:
            raise NotReady(str(error)) from error
        except ValueError as error:
            raise NotReady(f"The image decoder gave a wrong answer: {error}. Retry later.") from error
        if answer.problem is not None:
            return ImageProblem(answer.problem, answer.message)
        self._metrics.image_decoded(seconds)
        grid = self._store.settings.sizes.grid(answer.width, answer.height)
        return Picture(answer.rows, answer.cols, tuple(reservation.write(tile, grid) for tile in tiles))

    @contextmanager
    def _idle_worker(self) -> Iterator[ConfinedWorker]:
        """Return a context with a process that no other thread uses."""
        try:
            worker = self._idle.pop()  # the one used last: a second is started only when two are needed at once
        except IndexError:
            worker = self._new_worker()
            self._workers.append(worker)
            if self._closed:  # checked after the append: `close` may have missed the new one
                worker.close()
        try:
            yield worker
        finally:
            self._idle.append(worker)

    def _new_worker(self) -> ConfinedWorker:
        settings, limits = self._store.settings, self.limits
        return ConfinedWorker(
            "the image decoder",
            "numaserve.server.images.process",
            {"settings": msgspec.to_builtins(settings), "limits": msgspec.to_builtins(limits)},
            max_bytes=self._most * settings.tile_bytes + _HEAD_BYTES,
            memory_bytes=_BASE_BYTES + _PIXEL_BYTES * limits.file_pixels + 3 * limits.file_bytes,
            cpu_seconds=_CPU_SECONDS,
            seconds=_SECONDS,
            in_background=True,
        )
