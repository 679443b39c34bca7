"""The faults of a run, drawn from a seed, and how they are brought about."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.chaos.cells import Action, Point
from tests.chaos.served import RANKS, ChaosServer

_ENDING = frozenset({Action.KILL, Action.CRASH, Action.STOP, Action.ABORT})


@dataclass(frozen=True)
class Fault:
    """Something that happens to a worker: at a point, or, where that is None, after some time."""

    point: Point | None
    action: Action
    rank: int
    times: int  # it happens when the point is come to for the how many-th time
    after_s: float
    steps: int  # that are answered before

    def __str__(self) -> str:
        where = self.point.name if self.point else f"after {self.after_s:.3f} s"
        return f"{self.action.name} of rank {self.rank} at {where} ({self.times})"


_FAULTS: tuple[tuple[int, Point | None, Action], ...] = ((4, Point.DECODE, Action.KILL),)


def draw_faults(seed: int) -> Iterator[Fault]:
    """Faults without end, the same for the same seed."""
    draw = random.Random(seed)
    weights = [weight for weight, *_ in _FAULTS]
    while True:
        _, point, action = draw.choices(_FAULTS, weights)[0]
        yield Fault(
            point,
            action,
            draw.randrange(RANKS),
            times=draw.randint(1, 20),
            after_s=draw.uniform(0, 0.5),
            steps=draw.randint(5, 60),
        )


@dataclass
class Injector:
    """Brings faults about, one after the other."""

    server: ChaosServer
    deaths: list[float] = field(default_factory=list)  # times of `time.monotonic()`
    hits: Counter[str] = field(default_factory=Counter)  # by state
    missed: list[str] = field(default_factory=list)

    async def bring(self, fault: Fault) -> None:
        """Bring one about, and wait until the server serves again. Raises `ServerGone`."""
        server, cell = self.server, self.server.cells.ranks[fault.rank]
        await server.until(lambda: server.serves(fault.steps))
        lives = server.lives()
        assert fault.point is not None
        number = server.cells.command(fault.rank, fault.point, fault.action, times=fault.times)
        if not await server.until(lambda: cell.done == number, 20.0):
            server.cells.withdraw(fault.rank)
            self.missed.append(str(fault))
            return
        self.hits[fault.point.name.lower()] += 1
        if fault.action in _ENDING:
            self.deaths.append(time.monotonic())
            await server.until(lambda: server.lives() != lives and server.serves())
