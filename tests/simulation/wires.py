"""The connections of the front end to simulated agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from numaserve.server.supervisor.agent_messages import FromAgent, ToAgent, decode_to_agent, encode_message
from numaserve.server.supervisor.agent_wire import AgentAddress
from numaserve.workers.interface.host_links import Address, KeyPair

from tests.simulation.world import World

_WAY_S = 0.002  # from an agent to the front end, on average


class FarEnd(Protocol):
    """An agent, as its connections see it."""

    world: World
    stage: int
    silent_until: float

    def take(self, wire: SimulatedWire, message: ToAgent) -> None:
        """Take a message from the front end."""


@dataclass(frozen=True)
class SimulatedPlace(AgentAddress):
    """An address at which a simulated agent is found."""

    agent: FarEnd

    def __init__(self, agent: FarEnd) -> None:
        super().__init__(Address(f"host{agent.stage}", 1), "", KeyPair("", ""))
        object.__setattr__(self, "agent", agent)

    def open(self, on_frames: Callable[[list[bytes]], None], on_end: Callable[[], None]) -> SimulatedWire:
        return SimulatedWire(self.agent, on_frames, on_end)


class SimulatedWire:
    """Implements `Wire`."""

    def __init__(self, agent: FarEnd, on_frames: Callable[[list[bytes]], None], on_end: Callable[[], None]) -> None:
        self._agent, self._on_frames, self._on_end = agent, on_frames, on_end
        self._last = 0.0  # arrival
        self.is_closed = False

    def send(self, frames: Sequence[bytes | memoryview]) -> bool:
        self._agent.take(self, decode_to_agent([bytes(each) for each in frames]))
        return True

    def close(self) -> None:
        self.is_closed = True

    def post(self, message: FromAgent) -> None:
        """Have a message arrive after those that were posted before."""
        self._arrive_later(self.arrives, message)

    def ends(self) -> None:
        """Have the connection end."""
        self._arrive_later(self._ended)

    def arrives(self, message: FromAgent) -> None:
        """Deliver a message that arrives now."""
        if not self.is_closed:
            self._on_frames([bytes(each) for each in encode_message(message)])

    def _arrive_later(self, arrive: Callable[..., None], *message: FromAgent) -> None:
        world = self._agent.world
        soon = world.loop.time() + world.rng.expovariate(1 / _WAY_S)
        self._last = max(self._last + 1e-6, soon, self._agent.silent_until)
        world.loop.call_arriving_at(self._last, arrive, *message)

    def _ended(self) -> None:
        if not self.is_closed:
            self._on_end()
