"""Guesses, some of them right."""

from tests.simulation.truth import FIRST
from tests.simulation.world import World


class SimulatedDrafter:
    """Guesses what sequences really say, each token rightly with a probability."""

    def __init__(self, world: World, right: float, _salt: str) -> None:
        self._world = world
        self._right = right

    def guess(self, tokens: list[int], most: int) -> list[int]:
        """Guesses of what follows; some are for a token more than there is."""
        end = len(tokens)
        found = (each.tokens for each in self._world.truths.values() if each.tokens[:end] == tokens)
        true = next(found, tokens)[end : end + most]
        return [token if self._world.chance(self._right) else FIRST for token in true]
