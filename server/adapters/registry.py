"""The register of adapters: the places on the ranks, the names in requests, and the requests of each adapter.

Everything runs in one event loop, so no two changes occur at the same time. Each change has one writer:

| from | to | by |
|---|---|---|
| free | loading | `reserve`, when a load begins |
| loading | loaded | `serve`, when every rank has loaded the adapter: requests find its name from now on |
| loading | free | `release`, when the load failed |
| loaded | draining | `withdraw`, by an unload, by a load in its place, or because new workers cannot load it |
| draining | free, or loading | `_settle`, when no request and no plan in flight uses the adapter any more |

The workers of a place see none of these states. They learn of a load by a message, and a place that is free again keeps
its contents until the next load. No plan names the number meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from numaserve.server.adapters.errors import AdapterError
from numaserve.server.scheduler.adapter import Adapter

State = Literal["free", "loading", "loaded", "draining"]


@dataclass(frozen=True)
class RegistryHooks:
    """The calls to the other parts of the engine."""

    withdrawn: Callable[[Adapter], None] = lambda _: None  # no request finds the adapter any more
    forgotten: Callable[[Adapter], None] = lambda _: None  # no request uses the adapter any more
    planned: Callable[[Adapter], bool] = lambda _: False  # whether a plan in flight names the adapter
    changed: Callable[[], None] = lambda: None  # adapters that requests find were added or removed


@dataclass(eq=False)
class Place:
    """The memory for an adapter on every rank."""

    number: int  # from 1
    state: State = "free"
    adapter: Adapter | None = None  # None: free or loading
    requests: int = 0  # of `adapter`
    replaced: bool = False  # draining because of another load under its name
    claimed: bool = False  # the load waits for this place
    empty: asyncio.Event = field(default_factory=asyncio.Event)  # not loaded and not draining

    def __post_init__(self) -> None:
        self.empty.set()


class Registry:
    """The register of `places` places. `reserved` are the names of the served model, which no adapter may have."""

    def __init__(self, places: int, reserved: Iterable[str] = ()) -> None:
        self.hooks = RegistryHooks()
        self._places = {number: Place(number) for number in range(1, places + 1)}
        self._served: dict[str, Adapter] = {}
        self._loading: set[str] = set()
        self._replaced: set[str] = set()  # of `_loading`, those whose earlier adapter was withdrawn
        self._reserved = frozenset(reserved)

    @property
    def served(self) -> Mapping[str, Adapter]:
        """The adapters that requests find, by name."""
        return self._served

    @property
    def num_places(self) -> int:
        """The number of places."""
        return len(self._places)

    @property
    def used(self) -> Sequence[Adapter]:
        """The adapters that requests find or use, by place."""
        return [each.adapter for each in self._places.values() if each.adapter is not None]

    def is_replaced(self, name: str) -> bool:
        """Return whether requests do not find the name at the moment, because a load replaces its adapter."""
        return name in self._replaced

    def admits(self, adapter: Adapter) -> bool:
        """Return whether a request that found the adapter may use it: the adapter was not unloaded meanwhile."""
        place = self._places[adapter.number]
        return place.adapter is adapter and (place.state == "loaded" or place.replaced)

    def reserve(self, name: str, *, replace: bool) -> Place:
        """Begin a load, and return its place; the load waits for `Place.empty`. Raises `AdapterError`.

        With `replace`, an adapter of that name stays until the new one is loaded. If there is no free place, it is
        withdrawn instead, and its place is used as soon as its requests have ended.
        """
        self._check_name(name, replace=replace)
        place = next((each for each in self._places.values() if each.state == "free"), None)
        if place is not None:
            place.state = "loading"
        elif name in self._served:
            # Before it is withdrawn: without requests its place is empty at once, and another load could take it.
            self._places[self._served[name].number].claimed = True
            self._replaced.add(name)
            place = self.withdraw(self._served[name], replaced=True)
        else:
            raise AdapterError("full", self._full())
        self._loading.add(name)
        return place

    def release(self, name: str, place: Place) -> None:
        """End a load that failed."""
        self._loading.discard(name)
        self._replaced.discard(name)
        place.claimed = False
        if place.state == "loading":
            place.state = "free"

    def serve(self, place: Place, adapter: Adapter) -> None:
        """End a load: requests find the adapter. An earlier adapter of that name is withdrawn."""
        self._loading.discard(adapter.name)
        self._replaced.discard(adapter.name)
        earlier = self._served.get(adapter.name)
        if earlier is not None:
            self.withdraw(earlier, replaced=True)
        place.state, place.adapter, place.claimed = "loaded", adapter, False
        place.empty.clear()
        self._served[adapter.name] = adapter
        self.hooks.changed()

    def unserve(self, name: str) -> Place:
        """Begin an unload, and return the place; the unload ends with `Place.empty`. Raises `AdapterError`."""
        if name not in self._served:
            if name in self._loading:
                raise AdapterError("busy", self._busy(name))
            raise AdapterError("missing", f"The lora adapter '{name}' cannot be found.")
        return self.withdraw(self._served[name])

    def withdraw(self, adapter: Adapter, *, replaced: bool = False) -> Place:
        """Let requests find the adapter no longer; those that use it go on. Return its place."""
        place = self._places[adapter.number]
        del self._served[adapter.name]
        place.state, place.replaced = "draining", replaced
        self.hooks.withdrawn(adapter)
        self.hooks.changed()
        self._settle(place)
        return place

    def drop(self, number: int) -> Adapter | None:
        """Admit no request to the adapter of a place any more, which is lost. Return the adapter; None if the place has
        none."""
        place = self._places.get(number)
        if place is None or place.adapter is None:
            return None
        adapter, place.replaced = place.adapter, False
        if place.state == "loaded":
            self.withdraw(adapter)
        return adapter

    def enter(self, adapter: Adapter) -> None:
        """Note a request that uses the adapter."""
        self._places[adapter.number].requests += 1

    def leave(self, adapter: Adapter) -> None:
        """Note the end of such a request."""
        place = self._places[adapter.number]
        place.requests -= 1
        self._settle(place)

    def settle(self) -> None:
        """Free the places of adapters that no request and no plan uses any more: a plan was answered or is lost."""
        for place in self._places.values():
            self._settle(place)

    def _settle(self, place: Place) -> None:
        adapter = place.adapter
        if place.state != "draining" or adapter is None or place.requests or self.hooks.planned(adapter):
            return
        place.adapter, place.replaced = None, False
        place.state = "loading" if place.claimed else "free"
        self.hooks.forgotten(adapter)
        place.empty.set()

    def _check_name(self, name: str, *, replace: bool) -> None:
        if name in self._reserved:
            message = f"'{name}' is a name of the served model. Choose another name for the LoRA adapter."
            raise AdapterError("invalid", message)
        if name in self._loading:
            raise AdapterError("busy", self._busy(name))
        if name in self._served and not replace:
            message = (
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True."
            )
            raise AdapterError("invalid", message)

    @staticmethod
    def _busy(name: str) -> str:
        return f"The LoRA adapter '{name}' is being loaded. Retry when GET /v1/models lists it."

    def _full(self) -> str:
        if not self._places:
            return (
                "The server has no memory for LoRA adapters (--max-loras 0). Start the server with --max-loras N, or "
                "name adapters with --lora."
            )
        draining = sum(each.state == "draining" for each in self._places.values())
        more = f" Unloaded adapters whose requests have not ended: {draining}." if draining else ""
        names = ", ".join(f"'{name}'" for name in self._served)
        return (
            f"The server has memory for {self.num_places} LoRA adapters (--max-loras), and all of it is used: "
            f"{names or 'none is loaded'}.{more} Unload an adapter with POST /v1/unload_lora_adapter, or start the "
            "server with a larger --max-loras."
        )
