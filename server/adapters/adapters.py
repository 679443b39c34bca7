"""Loading and unloading of adapters while the server runs."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from numaserve.server.adapters.errors import AdapterError
from numaserve.server.adapters.registry import Place, Registry, RegistryHooks
from numaserve.server.common.patience import patiently
from numaserve.server.config.lora_modules import NAME_FORM, LoraModule, is_lora_name
from numaserve.server.scheduler.adapter import Adapter
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import LoraAdapter

_log = logging.getLogger(__name__)

LOAD_DEADLINE_S = 300.0  # as for the weights of the model: longer is stuck, for example on a dead file system

T = TypeVar("T")


class Description(Protocol):
    """The files of an adapter, as they fit the served model."""

    @property
    def rank(self) -> int:
        """The largest rank of the adapter's matrices."""

    @property
    def mean_rank(self) -> float:
        """See `Adapter`."""

    @property
    def matrices(self) -> int:
        """The number of the model's matrices that the adapter changes."""

    @property
    def digest(self) -> str:
        """SHA-256 of the files, in hexadecimal digits."""


class LoadsAdapters(Protocol):
    """The ranks."""

    async def load(self, adapter: LoraAdapter) -> int:
        """Return the number of matrices that the adapter changes, when every rank has loaded it. Raises
        `AdapterError`."""


# Reads the files of an adapter. Blocks; raises `OperatorError` for files that the model cannot be served with.
Describe = Callable[[Path], Description]
# Runs a function that blocks in a thread.
InThread = Callable[[Describe, Path], Awaitable[Description]]


def _describes_nothing(path: Path) -> Description:
    raise OperatorError(f"{path}: this server serves no LoRA adapters")


class Adapters:
    """The adapters of a server with memory for `places` of them. `reserved` are the names of the served model.

    Loads are serialised: the ranks load one adapter at a time. A load or an unload continues when its client leaves.
    """

    def __init__(
        self,
        places: int = 0,
        describe: Describe = _describes_nothing,
        *,
        reserved: Collection[str] = (),
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        self._describe = describe
        self._in_thread = in_thread
        self._registry = Registry(places, reserved)
        self._ids = itertools.count(1)
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[object]] = set()
        self._ranks: LoadsAdapters | None = None

    def connect(self, ranks: LoadsAdapters, hooks: RegistryHooks) -> None:
        """Set the ranks and the hooks, before the first load and the first request."""
        self._ranks = ranks
        self._registry.hooks = hooks

    @property
    def num_places(self) -> int:
        """The number of adapters that have memory."""
        return self._registry.num_places

    @property
    def loaded(self) -> Mapping[str, Adapter]:
        """The adapters that requests find, by name."""
        return self._registry.served

    def find(self, name: str) -> Adapter | None:
        """Return the adapter of that name. Raises `AdapterError` while a load replaces it."""
        adapter = self._registry.served.get(name)
        if adapter is None and self._registry.is_replaced(name):
            raise AdapterError("not_ready", f"The LoRA adapter '{name}' is being replaced. Retry later.")
        return adapter

    def admits(self, adapter: Adapter) -> bool:
        """Return whether a request that found the adapter may use it: the adapter was not unloaded meanwhile."""
        return self._registry.admits(adapter)

    def enter(self, adapter: Adapter) -> None:
        """Note a request that uses the adapter."""
        self._registry.enter(adapter)

    def leave(self, adapter: Adapter) -> None:
        """Note the end of such a request."""
        self._registry.leave(adapter)

    def settle(self) -> None:
        """Free places after a plan was answered or is lost."""
        self._registry.settle()

    def name_at_start(self, modules: Iterable[LoraModule]) -> None:
        """Take the adapters that the ranks load before they are ready. Blocks; raises `OperatorError`."""
        for name, path in modules:
            try:
                found = self._describe(path)
                place = self._registry.reserve(name, replace=False)
            except (AdapterError, OperatorError) as error:
                raise OperatorError(f"--lora {name}: {error}") from None
            self._registry.serve(place, self._made(name, path, place, found, found.matrices))

    def at_launch(self) -> Sequence[LoraAdapter]:
        """Return the adapters that new workers load before they are ready."""
        return [LoraAdapter(each.number, each.path, each.digest) for each in self._registry.used]

    async def load(self, name: str, path: Path, *, replace: bool = False) -> Adapter:
        """Load the adapter at `path` on every rank, and return it. Raises `AdapterError`.

        With `replace`, the adapter takes the place of an adapter of that name, whose requests end with it.
        """
        if not is_lora_name(name):
            raise AdapterError("invalid", f"The adapter name '{name[:256]}' is invalid. A name must have {NAME_FORM}.")
        place = self._registry.reserve(name, replace=replace)
        try:
            async with patiently(LOAD_DEADLINE_S):
                return await self._outlasting(self._load(name, path, place))
        except TimeoutError:
            message = (
                f"The LoRA adapter '{name}' was not loaded within {LOAD_DEADLINE_S:.0f} s. The server continues to "
                "load it: GET /v1/models lists the adapter when it is loaded."
            )
            raise AdapterError("not_ready", message) from None

    async def unload(self, name: str) -> None:
        """Let requests find the adapter no longer, and return when those that use it have ended. Raises
        `AdapterError`."""
        place = self._registry.unserve(name)
        _log.info("unloading the LoRA adapter %s: %d requests use it", name, place.requests)
        await self._outlasting(self._unload(name, place))

    def drop(self, number: int, problem: str) -> Adapter | None:
        """Drop the adapter of a place, which new workers could not load, and return it; None for an empty place. The
        caller ends its requests."""
        adapter = self._registry.drop(number)
        if adapter is not None:
            _log.error("the LoRA adapter %s was dropped: new workers could not load it: %s", adapter.name, problem)
        return adapter

    async def _load(self, name: str, path: Path, place: Place) -> Adapter:
        try:
            await place.empty.wait()
            async with self._turn:
                adapter = await self._loaded(name, path, place)
        except BaseException as error:
            is_lost = self._registry.is_replaced(name)
            self._registry.release(name, place)
            if isinstance(error, AdapterError):
                _log.warning("the LoRA adapter %s was not loaded: %s", name, error)
                if is_lost:
                    message = f"{str(error).removesuffix('.')}. The earlier adapter '{name}' is not loaded any more."
                    raise AdapterError(error.kind, message) from error
            raise
        self._registry.serve(place, adapter)
        _log.info("loaded the LoRA adapter %s of rank %d: %d matrices", name, adapter.rank, adapter.matrices)
        return adapter

    async def _loaded(self, name: str, path: Path, place: Place) -> Adapter:
        if self._ranks is None:
            raise AdapterError("not_ready", "The server is loading. Retry later.")
        try:
            found = await self._in_thread(self._describe, path)
        except OperatorError as error:
            raise AdapterError("invalid", f"The LoRA adapter '{name}' cannot be loaded: {error}") from error
        matrices = await self._ranks.load(LoraAdapter(place.number, str(path), found.digest))
        return self._made(name, path, place, found, matrices)

    @staticmethod
    async def _unload(name: str, place: Place) -> None:
        await place.empty.wait()
        _log.info("unloaded the LoRA adapter %s", name)

    def _made(self, name: str, path: Path, place: Place, found: Description, matrices: int) -> Adapter:
        return Adapter(
            name, str(path), place.number, next(self._ids), found.digest, found.rank, found.mean_rank, matrices
        )

    async def _outlasting(self, work: Coroutine[object, object, T]) -> T:
        """Return the result of `work`, which continues when the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, in case the caller has left
