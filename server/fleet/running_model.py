"""What the fleet keeps of one model: the process of its server, the way to it, and what has become of earlier ones."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from numaserve.server.fleet.member import EXIT_MISTAKE
from numaserve.server.fleet.process import ModelProcess
from numaserve.server.fleet.resident import Resident
from numaserve.server.supervisor.policy import RestartPolicy


@dataclass
class RunningModel:
    """A model, whose server listens at `path` when there is one. Every method is called in the event loop."""

    resident: Resident
    path: Path
    process: ModelProcess | None = None
    session: aiohttp.ClientSession | None = None
    started_at: float = 0.0
    status: int = 0  # of the last process that ended by itself
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set, and new, at each change of state
    _policy: RestartPolicy = field(default_factory=RestartPolicy)
    _timers: list[asyncio.TimerHandle] = field(default_factory=list)
    _is_served: bool = False  # by the process that there is
    _was_served: bool = False  # by any

    @property
    def name(self) -> str:
        """Its name."""
        return self.resident.spec.name

    def starts(self, now: float) -> None:
        """A process is about to be started."""
        self.started_at, self._is_served = now, False

    def serves(self) -> None:
        """The process is ready."""
        self._is_served = self._was_served = True

    def is_hopeless(self, now: float) -> bool:
        """Whether to start its server again, which has ended with `status`, would not help.

        What a server has been started with cannot be wrong once it was ready. One that says so afterwards does not find
        what was there before, memory above all, and may find it a moment later.
        """
        is_wrong = self.status == EXIT_MISTAKE and not self._was_served
        gives_up = is_wrong or self._policy.failed(now, was_ready=self._is_served)
        if gives_up:
            self._policy = RestartPolicy()
        return gives_up

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next start."""
        return self._policy.pause_s

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it in a while, unless `forget_timers` is called before."""
        self._timers.append(asyncio.get_running_loop().call_later(seconds, call))

    def forget_timers(self) -> None:
        """Call nothing later."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def tell_change(self) -> None:
        """Wake up who waits for another state."""
        self.changed.set()
        self.changed = asyncio.Event()

    def close_session(self) -> None:
        """Have no way to its server any more."""
        if self.session is not None:
            asyncio.get_running_loop().create_task(self.session.close())
            self.session = None
