"""Hidden states of the served model for the tokens before the predicted tokens."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numaserve.workers.interface.protocol import KEPT_HIDDEN_STATES, PAGE_SIZE

Bits = npt.NDArray[np.uint16]  # of bf16
Memory = npt.NDArray[np.uint8]


def widen(states: Bits, out: npt.NDArray[np.uint32]) -> None:
    """Write hidden states to `out` as the bits of fp32, of which bf16 is the upper half."""
    np.left_shift(states, 16, out=out, dtype=np.uint32)


class HiddenStates:
    """The hidden states of each slot's last `KEPT_HIDDEN_STATES` tokens, and of each page's last token.

    A sequence that begins after a cached prefix finds the hidden state of the prefix's last token there, whichever
    sequence computed it. Pages with all hidden states would be simpler, but take a fifth of the memory of DeepSeek's
    latents.
    """

    def __init__(self, of_slots: Memory, of_pages: Memory, columns: int) -> None:
        """Use the memory of the layer that declares them: uint8 [slots, bytes] and [pages, bytes]."""
        slots = len(of_slots)
        self._recent = of_slots.view(np.uint16).reshape(slots, KEPT_HIDDEN_STATES, -1)[..., :columns]
        self._of_pages = of_pages.view(np.uint16)[:, :columns]
        self._pages: list[list[int]] = [[] for _ in range(slots)]

    def begin(self, slot: int) -> None:
        """Begin a sequence, without pages, in a slot."""
        self._pages[slot] = []

    def append_pages(self, slot: int, pages: Sequence[int]) -> None:
        """Append pages to the sequence in a slot."""
        self._pages[slot] += pages

    def find(self, slot: int, first: int, count: int) -> Bits:
        """Return the hidden states of `count` tokens of a slot's sequence from position `first` on.

        Shape: [count, columns].
        """
        positions = np.arange(first, first + count)
        found: Bits = self._recent[slot, positions % KEPT_HIDDEN_STATES]
        for index in np.flatnonzero(positions % PAGE_SIZE == PAGE_SIZE - 1):
            found[index] = self._of_pages[self._pages[slot][int(positions[index]) // PAGE_SIZE]]
        return found

    def keep(self, slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], states: Bits) -> None:
        """Store the hidden states of a step's tokens, given slot and position of each, ascending in each slot."""
        self._recent[slots, positions % KEPT_HIDDEN_STATES] = states
        for index in np.flatnonzero(positions % PAGE_SIZE == PAGE_SIZE - 1):
            self._of_pages[self._pages[slots[index]][int(positions[index]) // PAGE_SIZE]] = states[index]
