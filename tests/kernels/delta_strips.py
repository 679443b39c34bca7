"""Sequences over strips of states: what tests of the rules of recurrence share."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numaserve.workers.program.caches import DeltaHeads
from numaserve_kernel_tests import gated_delta

Floats = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
TOKENS = 37
SLOT, OTHER, SNAPSHOT = 0, 1, 2  # the numbers of three states


@dataclass(frozen=True)
class Sizes:
    """Heads and their dimensions."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int

    def __str__(self) -> str:
        return f"{self.key_heads}x{self.key_dim} {self.heads}x{self.value_dim}"


MODEL = Sizes(2, 4, 128, 128)
ALL = (MODEL, Sizes(1, 1, 16, 32), Sizes(1, 3, 24, 40), Sizes(2, 2, 7, 5), Sizes(1, 2, 33, 16), Sizes(1, 1, 1, 1))
ALL += (Sizes(1, 2, 64, 48),)


class Strips:
    """Random tokens of a sequence, with `gates` gates for each head, and the decays of the heads."""

    def __init__(self, rng: np.random.Generator, sizes: Sizes, tokens: int, gates: int) -> None:
        self.sizes, self._gates = sizes, gates
        columns = 2 * sizes.key_heads * sizes.key_dim + sizes.heads * sizes.value_dim
        self.x = rng.standard_normal((tokens, columns)).astype(np.float32)
        self.gates = (3 * rng.standard_normal((tokens, gates * sizes.heads))).astype(np.float32)
        self.decay = -np.exp(rng.standard_normal(sizes.heads)).astype(np.float32)
        self.decay_bias = rng.standard_normal(sizes.heads).astype(np.float32)

    def more(self) -> tuple[Any, ...]:
        """Return further arguments of the kernel."""
        return ()

    def states(self) -> Floats:
        """Three states, with what earlier sequences left: the rule for position 0 must hide it."""
        s = self.sizes
        heads = DeltaHeads(s.key_heads, s.heads, s.key_dim, s.value_dim, self._gates)
        return np.full((3, heads.kept), np.nan, np.float32)

    def run(
        self,
        isa: str,
        segments: Sequence[tuple[int, int, int, int]],
        states: Floats,
        *,
        columns: int = 32,
        strips: int = 1,
    ) -> Floats:
        """The results of those segments, in items of `strips` of `columns`; rows without a segment are NaN."""
        s = self.sizes
        out = np.full((len(self.x), s.heads * s.value_dim), np.nan, np.float32)
        chain = np.array(segments, np.int32).reshape(-1, 4)
        gated_delta(
            isa, self.x, self.gates, self.decay, self.decay_bias, s.key_heads, s.key_dim, s.value_dim, chain, states,
            out, columns, strips, *self.more(),
        )  # fmt: skip
        return out

    def whole(self, isa: str, **cut: int) -> tuple[Floats, Floats]:
        """The results of the whole sequence, and its state."""
        states = self.states()
        return self.run(isa, [(0, len(self.x), -1, SLOT)], states, **cut), states[SLOT]

    def assert_same_bits_in_steps(self, isa: str) -> None:
        """Assert that the sequence has the same bits wherever steps cut it."""
        whole, last = self.whole(isa)
        for cuts in ([1], [2, 3], [16], [7, 8, 9, 36], range(1, TOKENS)):
            states, found = self.states(), np.empty_like(whole)
            for begin, end in itertools.pairwise([0, *cuts, TOKENS]):
                made = self.run(isa, [(begin, end - begin, SLOT if begin else -1, SLOT)], states)
                found[begin:end] = made[begin:end]
            np.testing.assert_array_equal(found, whole)
            np.testing.assert_array_equal(states[SLOT], last)
