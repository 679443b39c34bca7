"""The mask board of a simulated group."""

import ctypes
from collections.abc import Callable

from numaserve.server.scheduler.matcher import MaskState

from tests.simulation.truth import VOCABULARY
from tests.simulation.world import World


class SimulatedBoard:
    """Keeps what was published; `published` is called soon after."""

    fd = -1
    nonce = 0
    row_bytes = -(-VOCABULARY // 32) * 4

    def __init__(self, world: World, published: Callable[[], None]) -> None:
        self._world = world
        self._published = published
        self._closed = False
        self.rows: dict[tuple[int, int], tuple[MaskState, int]] = {}  # by step and slot

    def publish(self, step: int, row: int, state: int, bits: int = 0) -> None:
        if self._closed:
            self._world.violate(f"a mask for step {step} was published on the board of workers that are gone")
        mask = int.from_bytes(ctypes.string_at(bits, self.row_bytes), "little") if state == MaskState.MASK else 0
        self.rows[step, row] = MaskState(state), mask
        # A matcher holds a lock now, which the front end would wait for if it were told at once.
        self._world.loop.call_soon(self._published)

    def close(self) -> None:
        self._closed = True
