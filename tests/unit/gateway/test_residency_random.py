"""Models that are wanted, used and ended in any order."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numaserve.server.gateway.models.residency import MIN_STAY_S, Claim, Residency

CLAIMS = {
    "a": Claim(frozenset({0}), {0: 2}),
    "b": Claim(frozenset({0, 1}), {0: 1, 1: 2}, idle_unload_s=20.0),
    "c": Claim(frozenset({1}), {1: 4}),
    "d": Claim(frozenset({2}), {0: 3}),
    "e": Claim(frozenset({3}), {1: 1}, pinned=True, idle_unload_s=5.0),
    "f": Claim(frozenset({2, 4}), {0: 1}),
}
CAPACITY = {0: 4, 1: 5}
MAX_LOADED = 3
NAMES = st.sampled_from(sorted(CLAIMS))


class RandomResidency(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.residency = Residency(CLAIMS, CAPACITY, MAX_LOADED)
        self.now = 0.0
        self.processes: dict[str, str] = {}  # starting, up or told to end
        self.ordered: set[str] = set()
        self.wanted: set[str] = set()

    def act(self) -> None:
        for what, name in self.residency.decide(self.now):
            if what == "start":
                assert name not in self.processes
                assert name in self.wanted
                self.wanted.discard(name)
                self.ordered.discard(name)
                self.processes[name] = "starting"
            elif what == "drain":
                assert self.processes[name] == "up"
                assert not CLAIMS[name].pinned
            else:
                assert self.residency.requests(name) == 0
                assert self.processes[name] in {"starting", "up"}
                self.processes[name] = "told"
        assert self.residency.decide(self.now) == []

    @rule(name=NAMES, ordered=st.booleans())
    def want(self, name: str, ordered: bool) -> None:
        self.residency.want(name, ordered=ordered)
        if self.residency.state(name) in {"unloaded", "draining"}:
            self.wanted.add(name)
            if ordered:
                self.ordered.add(name)
        self.act()

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        self.residency.forget(name)
        if name not in self.ordered:
            self.wanted.discard(name)
        self.act()

    @rule(name=NAMES)
    def enter(self, name: str) -> None:
        if self.residency.state(name) == "ready":
            self.residency.enter(name, self.now)
            self.act()

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        if self.residency.requests(name):
            self.residency.leave(name, self.now)
            self.act()

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        self.residency.unload(name)
        self.wanted.discard(name)
        self.ordered.discard(name)
        self.act()

    @rule(name=NAMES)
    def is_ready(self, name: str) -> None:
        if self.processes.get(name) in {"starting", "told"}:
            before = self.residency.state(name)
            self.residency.ready(name, self.now)
            assert self.residency.state(name) == ("ready" if before == "loading" else before)
            if before == "loading":
                self.processes[name] = "up"
            self.act()

    @rule(name=NAMES, again=st.booleans())
    def ends(self, name: str, again: bool) -> None:
        if name not in self.processes:
            return
        for _ in range(self.residency.requests(name)):  # they end with it
            self.residency.leave(name, self.now)
        goes_on = again and self.residency.state(name) != "draining"
        self.residency.ended(name, again=again)
        if goes_on:
            self.processes[name] = "starting"
        else:
            del self.processes[name]
        self.act()

    @rule(seconds=st.sampled_from([0.5, 3.0, MIN_STAY_S, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.act()

    @invariant()
    def what_is_loaded_has_room(self) -> None:
        claims = [CLAIMS[name] for name in self.processes]
        assert len(claims) <= MAX_LOADED
        assert sum(len(each.cores) for each in claims) == len(frozenset().union(*(each.cores for each in claims)))
        for node, capacity in CAPACITY.items():
            assert sum(each.memory.get(node, 0) for each in claims) <= capacity

    @invariant()
    def a_process_is_where_the_state_says_so(self) -> None:
        for name in CLAIMS:
            assert (name in self.processes) == (self.residency.state(name) in {"loading", "ready", "draining"})

    def teardown(self) -> None:
        """Once requests end and processes do as they are told, everybody who is wanted is loaded."""
        for _ in range(4 * len(CLAIMS)):
            for name, state in list(self.processes.items()):
                if state == "starting":
                    self.is_ready(name)
                elif state == "told":
                    self.ends(name, again=False)
                while self.residency.requests(name):
                    self.leave(name)
            self.wait(0.0)
        assert self.wanted == set()


TestRandomResidency: Any = RandomResidency.TestCase
TestRandomResidency.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
