"""The reference's memory of each sequence between steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numaserve.workers.interface.protocol import SamplingParams
from numaserve.workers.program.setup import ProgramLimits


@dataclass
class Slot:
    """One sequence: its pages, how it is sampled, the tokens that penalties count, what it sampled last or -1.

    Its states are those after `state_position` tokens; `state_drafts` draft tokens followed these in its last step.
    """

    pages: list[int] = field(default_factory=list)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    last_token: int = -1
    state_position: int = 0
    state_drafts: int = 0


class SlotTable:
    """All slots. Changes can be undone until `commit`: only a whole plan shows whether it can run."""

    def __init__(self, limits: ProgramLimits, vocabulary: int) -> None:
        self._limits, self._vocabulary = limits, vocabulary
        self._slots = [Slot() for _ in range(limits.max_slots)]
        self._before: dict[int, Slot] = {}

    def at(self, index: int) -> Slot:
        """Return a slot. Raises `ValueError` for an index out of range."""
        if not 0 <= index < len(self._slots):
            raise ValueError(f"slot {index} is out of range")
        return self._slots[index]

    def init(self, index: int, settings: Mapping[str, Any]) -> None:
        """Forget what a slot held. Raises `ValueError` for a slot or token id out of range."""
        self.check_ids(
            [
                token
                for name in ("bias_ids", "suppress", "token_ids_logprob", "prompt_history", "output_history")
                for token in settings[name]
            ]
        )
        own = {name: settings[name] for name in SamplingParams.__struct_fields__ if name in settings}
        bias = dict(zip(settings["bias_ids"], settings["bias_values"], strict=True))
        sampling = SamplingParams(**own, logit_bias=bias, logprobs=settings["num_logprobs"])
        slot = Slot([], sampling, list(settings["prompt_history"]), list(settings["output_history"]))
        self._change(index, slot)

    def append_pages(self, index: int, pages: Sequence[int]) -> None:
        """Add to a page table. Raises `ValueError` for a page out of range or a full table."""
        slot = self.at(index)
        if len(slot.pages) + len(pages) > self._limits.pages_per_slot:
            raise ValueError(f"the page table of slot {index} is full")
        for page in pages:
            if not 0 <= page < self._limits.num_pages:
                raise ValueError(f"page {page} is out of range")
        self._change(index, replace(slot, pages=[*slot.pages, *pages]))

    def check_ids(self, tokens: Sequence[int], *, more: int = 0) -> None:
        """Raises `ValueError` for a token id that is not in the vocabulary, nor among the `more` ids after it."""
        for token in tokens:
            if not 0 <= token < self._vocabulary + more:
                raise ValueError(f"token id {token} is not in the vocabulary")

    def commit(self) -> None:
        """Make the changes since the last `commit` final."""
        self._before.clear()

    def revert(self) -> None:
        """Take back the changes since the last `commit`."""
        for index, slot in self._before.items():
            self._slots[index] = slot
        self._before.clear()

    def _change(self, index: int, slot: Slot) -> None:
        self._before.setdefault(index, self.at(index))
        self._slots[index] = slot
