"""The faults of a run, drawn from a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

from tests.chaos.cells import Action, Point
from tests.chaos.served import RANKS

ANY_TIME, BOTH, IDLE, DRAINING = "any time", "both ranks", "idle", "draining"
TEMPLATE, GRAMMAR = "template child", "grammar child"
DISK, DESCRIPTORS = "full disk", "no descriptors"

# What can happen in each state. The sampling and the wait for masks are rank 0's.
_WORKERS: dict[str | Point, tuple[Action, ...]] = {
    Point.PREFILL: (Action.CRASH, Action.KILL, Action.SLOW, Action.ABORT),
    Point.COLLECTIVE: (Action.KILL, Action.CRASH, Action.STOP, Action.ABORT),
    Point.LOADING: (Action.KILL, Action.CRASH, Action.STOP),
    Point.RESTART: (Action.KILL, Action.CRASH),
    ANY_TIME: (Action.KILL, Action.ABORT, Action.CRASH, Action.SLOW, Action.STOP),
    IDLE: (Action.STOP, Action.KILL),
}
_GENERATION: dict[str | Point, tuple[Action, ...]] = {
    Point.DECODE: (Action.KILL, Action.CRASH, Action.ABORT, Action.STOP, Action.SLOW, Action.LOOP),
    Point.SAMPLING: (Action.KILL, Action.ABORT, Action.STOP),
    Point.MASK_WAIT: (Action.KILL, Action.CRASH, Action.SLOW),
    TEMPLATE: (Action.KILL,),
    GRAMMAR: (Action.KILL,),
    BOTH: (Action.KILL,),
    DISK: (Action.KILL,),
    DESCRIPTORS: (Action.SLOW,),
}
_OF_RANK_0 = frozenset({Point.SAMPLING, Point.MASK_WAIT})


@dataclass(frozen=True)
class Fault:
    """Something that happens to a worker at a point, or to a server."""

    state: str | Point
    action: Action
    rank: int
    times: int  # it happens when the point is come to for the how many-th time
    after_s: float  # or, where it is at no point, after some time
    steps: int  # that are answered before

    @property
    def place(self) -> str:
        """The state's name."""
        return place_of(self.state)

    def __str__(self) -> str:
        return f"{self.action.name} of rank {self.rank} in {self.place}, time {self.times} or {self.after_s:.3f} s"


def place_of(state: str | Point) -> str:
    """A state's name."""
    return state.name.lower().replace("_", " ") if isinstance(state, Point) else state


def states(*, pooled: bool) -> dict[str | Point, tuple[Action, ...]]:
    """The states in which something happens to a server, and what."""
    return _WORKERS if pooled else _WORKERS | _GENERATION


def draw_faults(seed: int, fewest_steps: int, *, pooled: bool) -> Iterator[Fault]:
    """Faults without end, the same for the same seed.

    They come in rounds, of which each has every state once, in an order of its own. What happens in a state is in
    turn everything that can. `fewest_steps` are answered between a death and the next fault: so many that whoever was
    in flight has come past where it was. Requests at whose positions workers die again and again are given up, and
    whether that is by chance cannot be told.
    """
    draw = random.Random(seed)
    found = states(pooled=pooled)
    turns = {state: cycle(draw.sample(actions, len(actions))) for state, actions in found.items()}
    while True:
        for state in draw.sample(list(found), len(found)):
            yield Fault(
                state,
                next(turns[state]),
                rank=0 if state in _OF_RANK_0 else draw.randrange(RANKS),
                times=draw.randint(1, 4) if state in (Point.DECODE, Point.COLLECTIVE, Point.SAMPLING) else 1,
                after_s=draw.uniform(0, 0.3),
                steps=draw.randint(fewest_steps, 2 * fewest_steps),
            )
