"""The state machine that decides which models are loaded and which are unloaded.

The module does no I/O: events come in with their times, and `decide` returns the actions. `fleet.Fleet` carries the
actions out and is the only caller, from the event loop, so no locks are needed.

    unloaded --wanted, and it fits-------> loading --process reports ready--> ready
    ready    --process ended-------------> loading (started again)
    loading  --process ended-------------> loading (started again), or failed when restarts have not helped
    ready, loading --ordered, idle too long, or in the way of a wanted model--> draining
    draining --process ended-------------> unloaded
    failed   --ordered-------------------> unloaded

A draining model takes no new requests. Its process is ended when its requests are answered or their drain time is over.
A request that arrives meanwhile wants the model again, and waits like a request for any other model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

State = Literal["unloaded", "loading", "ready", "draining", "failed"]
# Minimum time that a busy model stays ready: two models that alternately need one place would only load otherwise.
MIN_STAY_S = 10.0


@dataclass(frozen=True)
class Claim:
    """The resources of a loaded model: cores, and bytes of memory by node."""

    cores: frozenset[int]
    memory: Mapping[int, int]
    pinned: bool = False
    idle_unload_s: float | None = None


class Action(NamedTuple):
    """An action on a model: `start` its process, let its requests `drain` in bounded time, or `end` the process."""

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
    in_the_way: bool = False  # of a wanted model, at the last decision


@dataclass
class Residency:
    """The states of all models. `capacity` is bytes of memory by node; times are of one monotonic clock."""

    claims: Mapping[str, Claim]
    capacity: Mapping[int, int]
    max_loaded: int | None = None
    _wanted: list[str] = field(default_factory=list)
    _ordered: set[str] = field(default_factory=set)  # wanted by order of a client, not by requests alone

    def __post_init__(self) -> None:
        self._models = {name: _Model(claim) for name, claim in self.claims.items()}

    def state(self, name: str) -> State:
        """Return the state of a model."""
        return self._models[name].state

    def requests(self, name: str) -> int:
        """Return the number of requests that a model process has."""
        return self._models[name].requests

    def want(self, name: str, *, ordered: bool = False) -> None:
        """Queue a model to be loaded as soon as it fits; a failed model is loaded only if `ordered`."""
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
        """Dequeue a model that no request waits for. A model that is loading, or was ordered, is still loaded."""
        if name in self._wanted and name not in self._ordered:
            self._wanted.remove(name)

    def is_coming(self, name: str) -> bool:
        """Return whether the model will become ready or fail without a further call."""
        return name in self._wanted or self.state(name) == "loading"

    def enter(self, name: str, now: float) -> None:
        """Count a request that is sent to the ready model process."""
        model = self._models[name]
        model.requests, model.used_at = model.requests + 1, now

    def leave(self, name: str, now: float) -> None:
        """Count the end of a request."""
        model = self._models[name]
        model.requests, model.used_at = model.requests - 1, now

    def unload(self, name: str) -> None:
        """Unload a model by order of a client, even if it is pinned."""
        self._ordered.discard(name)
        self.forget(name)
        model = self._models[name]
        if model.state in {"loading", "ready"}:
            model.state = "draining"

    def ready(self, name: str, now: float) -> None:
        """Record that a model process is ready."""
        model = self._models[name]
        if model.state == "loading":
            model.state, model.ready_at, model.used_at = "ready", now, now

    def ended(self, name: str, *, again: bool) -> None:
        """Record the end of a model process. With `again` the model is loaded again, unless it was draining."""
        model = self._models[name]
        if model.state == "draining":
            model.state, model.told_to_end = "unloaded", False
        else:
            model.state = "loading" if again else "failed"

    def decide(self, now: float) -> list[Action]:
        """Return the actions that are due. Each action is returned once."""
        actions: list[Action] = []
        for name, model in self._models.items():
            model.in_the_way = False
            if self._seconds_to_idle(model, now) == 0:
                actions.append(self._drain(name))
        held: list[str] = []  # wanted models whose resources are reserved: later ones in the queue cannot take them
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
                    continue  # unload and delay no model for one that cannot be loaded alongside pinned models
                actions += [self._drain(victim) for victim in victims if self._may_go(victim, now)]
            held.append(name)
        for name, model in self._models.items():
            if model.state == "draining" and model.requests == 0 and not model.told_to_end:
                model.told_to_end = True
                actions.append(Action("end", name))
        return actions

    def next_look(self, now: float) -> float | None:
        """Return the seconds after which `decide` may return actions without a new event; None: never."""
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
        """Return the seconds until the model has been idle too long; None if it has requests or may stay idle."""
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
        """Return the models to unload before `name` can be loaded, draining models included."""
        claim = self.claims[name]
        others = [each for each, model in self._models.items() if model.state in {"loading", "ready", "draining"}]
        others += [each for each in held if each not in others]
        victims = [each for each in others if self.claims[each].cores & claim.cores]
        # Draining models first, then the least recently used.
        rest = sorted((each for each in others if each not in victims), key=self._when_used)
        for node, needed in claim.memory.items():
            while self._taken(node, rest) + needed > self.capacity.get(node, 0) and rest:
                victims.append(self._next(rest, node))
        while self.max_loaded is not None and len(rest) + 1 > self.max_loaded:
            victims.append(self._next(rest))
        return victims

    def _next(self, rest: list[str], node: int | None = None) -> str:
        """Remove the next victim from `rest` and return it: one with memory on `node`, if a node is given."""
        found = next((each for each in rest if node is None or self.claims[each].memory.get(node)), rest[0])
        rest.remove(found)
        return found

    def _taken(self, node: int, names: list[str]) -> int:
        return sum(self.claims[name].memory.get(node, 0) for name in names)

    def _when_used(self, name: str) -> tuple[bool, bool, float]:
        model = self._models[name]
        return model.claim.pinned, model.state != "draining", model.used_at
