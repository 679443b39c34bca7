"""The model processes, which are started, ended and restarted as `Residency` decides, and their waiting requests."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from functools import partial

import aiohttp
from numaserve.server.common.patience import wait_patiently
from numaserve.server.gateway.models.metrics import FleetMetrics
from numaserve.server.gateway.models.process import ModelProcess, ProcessHooks
from numaserve.server.gateway.models.residency import Residency, State
from numaserve.server.gateway.models.resident import FleetOptions, Resident
from numaserve.server.gateway.models.running_model import RunningModel
from numaserve.server.gateway.models.waiting import WaitingRoom, not_loadable, too_late
from numaserve.server.http.errors import not_ready

_log = logging.getLogger(__name__)

_KILL_S = 30.0  # after the drain time of a model process


class Fleet:
    """All models of the gateway. Call every method in the event loop; each change ends with `_act`."""

    def __init__(
        self,
        residents: Mapping[str, Resident],
        capacity: Mapping[int, int],
        max_loaded: int | None,
        options: FleetOptions,
        metrics: FleetMetrics,
    ) -> None:
        self._options = options
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        claims = {name: each.claim for name, each in residents.items()}
        self._residency = Residency(claims, capacity, max_loaded)
        self._models = {
            name: RunningModel(each, options.folder / f"m{index}.sock")
            for index, (name, each) in enumerate(residents.items())
        }
        self._waiting = WaitingRoom(residents)
        self._stopping = False
        self._next_look: asyncio.TimerHandle | None = None

    @property
    def names(self) -> list[str]:
        """The names of the models, in the file's order."""
        return list(self._models)

    def state(self, name: str) -> State:
        """Return the state of a model."""
        return self._residency.state(name)

    def waiting(self, name: str) -> int:
        """Return the number of requests that wait for a model."""
        return self._waiting.count(name)

    def requests(self, name: str) -> int:
        """Return the number of requests that a model process has."""
        return self._residency.requests(name)

    def exit_status(self, name: str) -> int:
        """Return the exit status of the last process of a model that ended by itself."""
        return self._models[name].status

    @property
    def at_start(self) -> list[str]:
        """The models that are loaded at start."""
        return [name for name, model in self._models.items() if model.resident.spec.place.load == "start"]

    def start(self) -> None:
        """Load the models that are loaded at start."""
        for name in self.at_start:
            self._residency.want(name)
        self._act()

    def is_ready(self) -> bool:
        """Return whether no model that is loaded at start is loading or has failed."""
        return not self._stopping and all(self.state(name) not in {"loading", "failed"} for name in self.at_start)

    async def load(self, name: str) -> State:
        """Load a model by order of a client; returns when the model is ready or loading failed."""
        self._check_open()
        self._residency.want(name, ordered=True)
        self._act()
        while self._residency.is_coming(name) and not self._stopping:
            await self._models[name].changed.wait()
        return self.state(name)

    async def unload(self, name: str) -> State:
        """Unload a model by order of a client; returns when the model process has ended.

        Requests that already wait for the model, or come later, have the model loaded again.
        """
        self._residency.unload(name)
        if self._waiting.count(name):
            self._residency.want(name)
        self._models[name].tell_change()
        self._start_to_drain(self._models[name])
        self._act()
        while self.state(name) == "draining" and not self._stopping:
            await self._models[name].changed.wait()
        return self.state(name)

    async def session_of(
        self, name: str, client: bytes, nbytes: int, time_left: float | None = None
    ) -> aiohttp.ClientSession:
        """Return the HTTP session to a model process for one request, which must be ended with `leave`.

        A model that is not loaded is awaited for at most `time_left` seconds; meanwhile the client holds `nbytes`.
        Raises `ApiError`.
        """
        self._check_open()
        if self.state(name) == "ready":
            return self.session_if_ready(name)
        if self.state(name) == "failed":
            raise not_ready(not_loadable(name), retry_after=None)
        patience = self._options.load_wait_s
        try:
            with self._waiting.place(name, client, nbytes) as place:
                self._residency.want(name)
                self._act()
                try:
                    async with asyncio.timeout(patience if time_left is None else min(patience, time_left)):
                        return await place
                except BaseException as error:
                    if place.done() and not place.cancelled() and place.exception() is None:
                        self.leave(name)  # the request was admitted at the same moment
                    if isinstance(error, TimeoutError):
                        raise too_late(name, at_request=time_left is not None and time_left < patience) from None
                    raise
        finally:
            if not self._waiting.count(name):
                self._residency.forget(name)

    def session_if_ready(self, name: str) -> aiohttp.ClientSession:
        """Return the session as `session_of` does, without loading. Raises `ApiError` if the model is not ready."""
        self._check_open()
        if self.state(name) != "ready":
            raise not_ready(
                f"The model '{name}' is not loaded. Load it first with POST /models/load.", retry_after=None
            )
        self._residency.enter(name, self._loop.time())
        return self._models[name].session

    def leave(self, name: str) -> None:
        """Record the end of a request that was given a session."""
        self._residency.leave(name, self._loop.time())
        self._act()

    def open_sessions(self) -> dict[str, aiohttp.ClientSession]:
        """Return the sessions of models that are ready or still have requests, for requests to all models."""
        return {
            name: model.session
            for name, model in self._models.items()
            if model.is_served and self.state(name) in {"ready", "draining"}
        }

    async def stop(self) -> None:
        """Refuse new requests, let running ones finish, and return when every model process has ended."""
        self._stopping = True
        if self._next_look is not None:
            self._next_look.cancel()
        for model in self._models.values():
            self._waiting.refuse(model.name, "The server is shutting down.")
            model.tell_change()
            model.forget_timers()
            if model.process is not None:
                model.process.signal(signal.SIGTERM)
        processes = [model.process for model in self._models.values() if model.process is not None]
        if processes:
            seconds = self._options.drain_seconds + _KILL_S
            await wait_patiently([process.gone for process in processes], seconds)
            for process in processes:
                process.signal(signal.SIGKILL)
                await process.gone
        for model in self._models.values():
            await model.session.close()

    def hurry(self) -> None:
        """End the remaining requests at once, during `stop`."""
        for model in self._models.values():
            if model.process is not None:
                model.process.signal(signal.SIGINT)

    def _check_open(self) -> None:
        if self._stopping:
            raise not_ready("The server is shutting down.")

    def _act(self) -> None:
        """Carry out the actions that are due, and schedule the next look."""
        if self._stopping:
            return
        now = self._loop.time()
        for what, name in self._residency.decide(now):
            model = self._models[name]
            if what == "start":
                self._start(model)
            elif what == "drain":
                self._start_to_drain(model)
            elif model.process is not None:
                model.process.signal(signal.SIGTERM)
            else:  # between two processes of the model
                self._on_gone(model)
        if self._next_look is not None:
            self._next_look.cancel()
        seconds = self._residency.next_look(now)
        self._next_look = None if seconds is None else self._loop.call_later(seconds, self._act)

    def _start(self, model: RunningModel) -> None:
        options = self._options
        launch = model.resident.launch(
            options.kernels,
            drain_seconds=options.drain_seconds,
            log_level=options.log_level,
            log_format=options.log_format,
        )
        hooks = ProcessHooks(*(partial(on, model) for on in (self._on_ready, self._on_end, self._on_gone)))
        _log.info("loading model %s", model.name)
        model.starts(self._loop.time())
        try:
            model.process = ModelProcess(options.command, launch, model.path, hooks, model.resident.watchdog_s)
        except OSError as error:
            _log.error("the process of model %s could not be started: %s", model.name, error)
            self._on_end(model, 1)
            model.later(0.0, partial(self._on_gone, model))

    def _on_ready(self, model: RunningModel) -> None:
        name, now = model.name, self._loop.time()
        model.serves()
        self._residency.ready(name, now)
        if self.state(name) != "ready":  # an order to unload the model came first
            return
        seconds = now - model.started_at
        _log.info("model %s became ready after %.1f s", name, seconds)
        self._metrics.loaded(name, seconds)
        for _ in range(self._waiting.let_in(name, model.session)):
            # Counted here, not when they wake up: before that, the model could be unloaded for lack of requests.
            self._residency.enter(name, now)
        model.tell_change()
        self._act()

    def _on_end(self, model: RunningModel, status: int) -> None:
        """Handle the end of a model process, whose workers may hold the model's memory for a while longer."""
        if self._stopping or self.state(model.name) == "draining":
            return
        _log.error("the process of model %s ended with status %d", model.name, status)
        model.status = status
        self._metrics.died(model.name)
        self._residency.ended(model.name, again=True)
        model.tell_change()

    def _on_gone(self, model: RunningModel) -> None:
        """Handle the end of a process and its workers, in any state of the model: its cores and memory are free."""
        name = model.name
        model.process = None
        model.forget_timers()
        if self._stopping:
            return
        if self.state(name) == "draining":
            _log.info("model %s was unloaded", name)
            self._residency.ended(name, again=False)
        elif model.is_hopeless(self._loop.time()):
            _log.error("model %s failed too often; its process will not be started again", name)
            self._residency.ended(name, again=False)
            self._waiting.refuse(name, not_loadable(name))
        else:
            model.later(model.pause_s, partial(self._start, model))
        model.tell_change()
        self._act()

    def _start_to_drain(self, model: RunningModel) -> None:
        """Schedule the signals that end the model process after its requests' drain time."""
        if model.process is None:
            return
        for after, number in ((0.0, signal.SIGTERM), (1.0, signal.SIGINT), (_KILL_S, signal.SIGKILL)):
            model.later(self._options.drain_seconds + after, partial(model.process.signal, number))
        model.tell_change()
