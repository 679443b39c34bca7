"""The fleet's record of one model: the HTTP session, the model process, and the ends of earlier processes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from numaserve.server.client.unix_session import open_session
from numaserve.server.common.patience import PatientTimer
from numaserve.server.gateway.models.process import ModelProcess
from numaserve.server.gateway.models.process_main import EXIT_MISTAKE
from numaserve.server.gateway.models.resident import Resident
from numaserve.server.supervisor.policy import RestartPolicy


@dataclass
class RunningModel:
    """A model whose process, if there is one, listens at `path`. Call every method in the event loop.

    `session` reaches each successive process of the model and is closed at the very end. Closing `session` earlier
    would raise aiohttp errors in readers of answers; connections end by themselves with their process.
    """

    resident: Resident
    path: Path
    process: ModelProcess | None = None
    started_at: float = 0.0
    status: int = 0  # exit status of the last process that ended by itself
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set and replaced at each change of state
    is_served: bool = False  # the current process was ready
    _policy: RestartPolicy = field(default_factory=RestartPolicy)
    _timers: list[PatientTimer] = field(default_factory=list)
    _was_served: bool = False  # any process was ready

    def __post_init__(self) -> None:
        self.session: aiohttp.ClientSession = open_session(self.path)

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.resident.spec.name

    def starts(self, now: float) -> None:
        """Record that a process is about to be started."""
        self.started_at, self.is_served = now, False

    def serves(self) -> None:
        """Record that the process is ready."""
        self.is_served = self._was_served = True

    def is_hopeless(self, now: float) -> bool:
        """Return whether another start would not help after the process ended with `status`.

        The options cannot be wrong once a process was ready. A process that reports a mistake after that lacks a
        resource, above all memory, that may be available again later.
        """
        is_wrong = self.status == EXIT_MISTAKE and not self._was_served
        gives_up = is_wrong or self._policy.failed(now, was_ready=self.is_served)
        if gives_up:
            self._policy = RestartPolicy()
        return gives_up

    @property
    def pause_s(self) -> float:
        """The seconds to wait before the next start."""
        return self._policy.pause_s

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Schedule `call` after `seconds` in which this process runs, unless `forget_timers` is called first."""
        self._timers.append(PatientTimer(call))
        self._timers[-1].start(seconds)

    def forget_timers(self) -> None:
        """Cancel all calls scheduled with `later`."""
        for timer in self._timers:
            timer.stop()
        self._timers.clear()

    def tell_change(self) -> None:
        """Wake the tasks that wait for a change of state."""
        self.changed.set()
        self.changed = asyncio.Event()
