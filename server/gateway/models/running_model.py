"""What the fleet keeps of one model: the way to its server, the process of that, and what became of earlier ones."""

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
    """A model, whose server listens at `path` when there is one. Everything is called in the event loop.

    `session` is the way to each of its servers, one after the other, and is closed at the very end: whoever reads an
    answer does not hear from aiohttp that its session was closed, while connections end by themselves with a process.
    """

    resident: Resident
    path: Path
    process: ModelProcess | None = None
    started_at: float = 0.0
    status: int = 0  # of the last process that ended by itself
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set, and new, at each change of state
    is_served: bool = False  # by the process that there is
    _policy: RestartPolicy = field(default_factory=RestartPolicy)
    _timers: list[PatientTimer] = field(default_factory=list)
    _was_served: bool = False  # by any

    def __post_init__(self) -> None:
        self.session: aiohttp.ClientSession = open_session(self.path)

    @property
    def name(self) -> str:
        """Its name."""
        return self.resident.spec.name

    def starts(self, now: float) -> None:
        """A process is about to be started."""
        self.started_at, self.is_served = now, False

    def serves(self) -> None:
        """The process is ready."""
        self.is_served = self._was_served = True

    def is_hopeless(self, now: float) -> bool:
        """Whether to start its server again, which has ended with `status`, would not help.

        What a server has been started with cannot be wrong once it was ready. One that says so afterwards does not find
        what was there before, memory above all, and may find it a moment later.
        """
        is_wrong = self.status == EXIT_MISTAKE and not self._was_served
        gives_up = is_wrong or self._policy.failed(now, was_ready=self.is_served)
        if gives_up:
            self._policy = RestartPolicy()
        return gives_up

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next start."""
        return self._policy.pause_s

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it when this process has been there for so long, unless `forget_timers` is called before."""
        self._timers.append(PatientTimer(call))
        self._timers[-1].start(seconds)

    def forget_timers(self) -> None:
        """Call nothing later."""
        for timer in self._timers:
            timer.stop()
        self._timers.clear()

    def tell_change(self) -> None:
        """Wake up who waits for another state."""
        self.changed.set()
        self.changed = asyncio.Event()
