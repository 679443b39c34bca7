"""Matchers that know the truth, and the work of matchers as a part of the event loop."""

import ctypes
import operator
from collections.abc import Callable, Sequence
from copy import copy
from itertools import takewhile

from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.matcher import ConstraintFailed, MaskState

from tests.simulation.scenario import Scenario
from tests.simulation.truth import Truth
from tests.simulation.world import World


class SimulatedMatcher:
    """Allows what the truth of its sequence says, and checks what it is told."""

    def __init__(self, world: World, truth: Truth) -> None:
        self._world = world
        self._truth = truth
        self._count = 0
        self._is_fork = self._is_lost = False

    is_confined = False

    def confine(self) -> None:
        """It stays."""

    def fork(self) -> "SimulatedMatcher":
        """One that draft tokens are tried on."""
        copied = copy(self)
        copied._is_fork = True
        return copied

    def forced(self) -> list[int]:
        """Right ones."""
        begin = self._truth.prompt_len + self._count
        return self._truth.tokens[begin : begin + 2]

    def would_accept(self, tokens: Sequence[int]) -> int:
        """How many are the true ones."""
        begin = self._truth.prompt_len + self._count
        return len(list(takewhile(bool, map(operator.eq, tokens, self._truth.tokens[begin:]))))

    def accept(self, token: int) -> None:
        position = self._truth.prompt_len + self._count
        if [token] != self._truth.tokens[position : position + 1]:
            if not self._is_fork:
                self._world.violate("a matcher was told a token that is not the sequence's next one")
            self._is_lost = True
        self._count += 1

    def write_mask(self, address: int, nbytes: int) -> MaskState:
        if self._is_lost or self._count > len(self._truth.masks):
            return MaskState.FREE
        step, fault = self._truth.wanted.mask_fault
        if self._count == step and fault == "failed":
            raise ConstraintFailed("on purpose")
        if self._count == step and fault == "broken":
            raise RuntimeError("on purpose")
        if self._count == len(self._truth.masks):
            return MaskState.FREE  # behind the last token of all
        state, bits = self._truth.masks[self._count]
        ctypes.memmove(address, bits.to_bytes(nbytes, "little"), nbytes)
        return state


class SimulatedMatcherWork:
    """Implements `MatcherWork`: each piece is done some time later, at once or too late."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        self._closed = False
        world.late_matchers = scenario.late_matchers > 0

    def submit(self, work: Callable[[], None]) -> None:
        rng = self._world.rng
        late = self._world.chance(self._scenario.late_matchers)
        seconds = 4 * self._scenario.mask_grace_s if late else rng.choice((0.0, 0.001, rng.expovariate(100)))
        self._world.loop.call_later(min(seconds, 4 * self._scenario.mask_grace_s), self._do, work)

    def submit_slow(self, work: Callable[[], None], client: Client) -> None:
        self._world.violate(f"work of {client} is slow that no matcher confines")

    def close(self) -> None:
        self._closed = True

    def _do(self, work: Callable[[], None]) -> None:
        if not self._closed:
            self._world.changed = True
            work()
