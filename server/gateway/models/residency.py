"""Which models are loaded, and which have to leave: states, who changes them, and what is to be done next.

Pure: events come in with their times, `decide` tells what to do. Who does it is `fleet.Fleet`, which is also the only
one to call this, from the event loop: nothing here is changed by two at once.

    unloaded --wanted, and there is room--> loading --its server says ready--> ready
    ready    --its process has ended-----> loading (started again)
    loading  --its process has ended-----> loading (started again), or failed when that has not helped
    ready, loading --ordered, idle too long, or in the way of a wanted one--> draining
    draining --its process has ended-----> unloaded
    failed   --ordered-------------------> unloaded

A model that is draining takes no new requests; its process is told to end when those it has are answered, or when their
time is over. Whoever asks for it meanwhile wants it again, and waits as behind any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

State = Literal["unloaded", "loading", "ready", "draining", "failed"]
# A model that answers is not sent away again before: two that want one place by turns would do nothing but load.
MIN_STAY_S = 10.0


@dataclass(frozen=True)
class Claim:
    """What a model takes of the machine while it is loaded: cores, and bytes of memory by node."""

    cores: frozenset[int]
    memory: Mapping[int, int]
    pinned: bool = False
    idle_unload_s: float | None = None


class Action(NamedTuple):
    """What is to be done with a model: `start` its process; let its requests `drain`, in bounded time; `end` it."""

    what: Literal["start", "drain", "end"]
    name: str


@dataclass
class _Model:
    claim: Claim
    state: State = "unloaded"
    requests: int = 0
    ready_at: float = 0.0
    used_at: float = 0.0
    told_to_end: bool = False
    in_the_way: bool = False  # of one that is wanted, since the last decision


@dataclass
class Residency:
    """The models of a machine. `capacity` is bytes of memory by node; times are of one monotonic clock."""

    claims: Mapping[str, Claim]
    capacity: Mapping[int, int]
    max_loaded: int | None = None
    _wanted: list[str] = field(default_factory=list)
    _ordered: set[str] = field(default_factory=set)  # of those that are wanted: not only by who may stop waiting

    def __post_init__(self) -> None:
        self._models = {name: _Model(claim) for name, claim in self.claims.items()}

    def state(self, name: str) -> State:
        """The state of a model."""
        return self._models[name].state

    def requests(self, name: str) -> int:
        """Requests that its server has."""
        return self._models[name].requests

    def want(self, name: str, *, ordered: bool = False) -> None:
        """Have it loaded as soon as there is room; one that has failed only when it is `ordered`."""
        model = self._models[name]
        if ordered and model.state == "failed":
            model.state = "unloaded"
        if model.state not in {"unloaded", "draining"}:
            return
        if ordered:
            self._ordered.add(name)
        if name not in self._wanted:
            self._wanted.append(name)

    def forget(self, name: str) -> None:
        """No request wants it any more. One that is being loaded, or was ordered, is loaded all the same."""
        if name in self._wanted and name not in self._ordered:
            self._wanted.remove(name)

    def is_coming(self, name: str) -> bool:
        """Whether it will be ready, or fail, without anything more being asked."""
        return name in self._wanted or self.state(name) == "loading"

    def enter(self, name: str, now: float) -> None:
        """A request goes to its server, which is ready."""
        model = self._models[name]
        model.requests, model.used_at = model.requests + 1, now

    def leave(self, name: str, now: float) -> None:
        """A request has ended."""
        model = self._models[name]
        model.requests, model.used_at = model.requests - 1, now

    def unload(self, name: str) -> None:
        """Unload it: an order, which holds for pinned ones too."""
        self._ordered.discard(name)
        self.forget(name)
        model = self._models[name]
        if model.state in {"loading", "ready"}:
            model.state = "draining"

    def ready(self, name: str, now: float) -> None:
        """Its server is."""
        model = self._models[name]
        if model.state == "loading":
            model.state, model.ready_at, model.used_at = "ready", now, now

    def ended(self, name: str, *, again: bool) -> None:
        """Its process has. With `again` it is started again, unless it was to end."""
        model = self._models[name]
        if model.state == "draining":
            model.state, model.told_to_end = "unloaded", False
        else:
            model.state = "loading" if again else "failed"

    def decide(self, now: float) -> list[Action]:
        """What is to be done now. Each thing is told once."""
        actions: list[Action] = []
        for name, model in self._models.items():
            model.in_the_way = False
            if self._seconds_to_idle(model, now) == 0:
                actions.append(self._drain(name))
        held: list[str] = []  # what is given to those who wait: nobody behind them takes it
        for name in list(self._wanted):
            if self._models[name].state == "unloaded":
                victims = self._in_the_way_of(name, held)
                if not victims:
                    self._wanted.remove(name)
                    self._ordered.discard(name)
                    self._models[name].state = "loading"
                    actions.append(Action("start", name))
                    continue
                if any(self._stays(victim) for victim in victims):
                    continue  # nobody is sent away, or kept waiting, for what cannot be loaded beside these
                actions += [self._drain(victim) for victim in victims if self._may_go(victim, now)]
            held.append(name)
        for name, model in self._models.items():
            if model.state == "draining" and model.requests == 0 and not model.told_to_end:
                model.told_to_end = True
                actions.append(Action("end", name))
        return actions

    def next_look(self, now: float) -> float | None:
        """Seconds after which `decide` may have more to say, though nothing has happened; None: never."""
        waits = [self._seconds_to_idle(model, now) for model in self._models.values()]
        waits += [
            max(0.0, model.ready_at + MIN_STAY_S - now)
            for model in self._models.values()
            if model.in_the_way and model.state == "ready"
        ]
        return min((wait for wait in waits if wait is not None), default=None)

    def _drain(self, name: str) -> Action:
        self._models[name].state = "draining"
        return Action("drain", name)

    @staticmethod
    def _seconds_to_idle(model: _Model, now: float) -> float | None:
        """Seconds until it has been idle for too long; None: it has requests, or may be idle."""
        seconds, pinned = model.claim.idle_unload_s, model.claim.pinned
        if model.state != "ready" or model.requests or pinned or seconds is None:
            return None
        return max(0.0, model.used_at + seconds - now)

    def _stays(self, name: str) -> bool:
        return self.claims[name].pinned and self._models[name].state in {"loading", "ready"}

    def _may_go(self, name: str, now: float) -> bool:
        model = self._models[name]
        model.in_the_way = True
        return model.state == "ready" and (model.requests == 0 or now - model.ready_at >= MIN_STAY_S)

    def _in_the_way_of(self, name: str, held: list[str]) -> list[str]:
        """Who has to go for `name` to be loaded, those that are going already among them."""
        claim = self.claims[name]
        others = [each for each, model in self._models.items() if model.state in {"loading", "ready", "draining"}]
        others += [each for each in held if each not in others]
        victims = [each for each in others if self.claims[each].cores & claim.cores]
        # Those that are going anyway, then the least recently used.
        rest = sorted((each for each in others if each not in victims), key=self._when_used)
        for node, needed in claim.memory.items():
            while self._taken(node, rest) + needed > self.capacity.get(node, 0) and rest:
                victims.append(self._next(rest, node))
        while self.max_loaded is not None and len(rest) + 1 > self.max_loaded:
            victims.append(self._next(rest))
        return victims

    def _next(self, rest: list[str], node: int | None = None) -> str:
        """Take the next victim out of `rest`: one that has memory on the node, where one is named."""
        found = next((each for each in rest if node is None or self.claims[each].memory.get(node)), rest[0])
        rest.remove(found)
        return found

    def _taken(self, node: int, names: list[str]) -> int:
        return sum(self.claims[name].memory.get(node, 0) for name in names)

    def _when_used(self, name: str) -> tuple[bool, bool, float]:
        model = self._models[name]
        return model.claim.pinned, model.state != "draining", model.used_at
