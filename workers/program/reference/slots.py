"""The reference's memory of each sequence between steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.protocol import SamplingParams
from numaserve.workers.interface.windows import BLOCK_PAGES


class PageTable(NamedTuple):
    """A page table of a sequence: no token reads its `first` pages any more, and it may begin with absent ones, -1."""

    pages: list[int]
    first: int = 0


@dataclass
class Slot:
    """One sequence: its page tables, how it is sampled, the tokens that penalties count, what it sampled last or -1.

    Its states are those after `state_position` tokens; `state_drafts` draft tokens followed these in its last step.
    """

    tables: list[PageTable]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    last_token: int = -1
    init: Mapping[str, Any] = field(default_factory=dict)  # the settings that it began with
    state_position: int = 0
    state_drafts: int = 0


class SlotTable:
    """All slots. Changes can be undone until `commit`: only a whole plan shows whether it can run."""

    def __init__(self, limits: Capacity, vocabulary: int) -> None:
        self._limits, self._vocabulary = limits, vocabulary
        self._table_pages = limits.table_pages
        self._slots = [Slot(self._empty_tables()) for _ in range(limits.max_slots)]
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
        histories = list(settings["prompt_history"]), list(settings["output_history"])
        slot = Slot(self._empty_tables(), sampling, *histories, init=settings)
        self._change(index, slot)

    def append_pages(self, index: int, pages: Sequence[int]) -> None:
        """Add to a page table. Raises `ValueError` for a page out of range or a full table."""
        self._grow(index, 0, 0, pages)

    def advance_window(self, index: int, window: int, first: int, pages: Sequence[int]) -> None:
        """Add to a window table whose `first` pages are no longer read. Raises `ValueError` for anything out of
        range."""
        if not 0 <= window < len(self._table_pages) - 1:
            raise ValueError(f"window table {window} is out of range")
        before = self.at(index).tables[window + 1].first
        if not before <= first <= self._limits.pages_per_slot or first % BLOCK_PAGES:
            raise ValueError(
                f"the first {first} pages of window table {window} of slot {index} must be whole blocks, and no fewer"
                " than before"
            )
        self._grow(index, window + 1, first, pages)

    def _grow(self, index: int, number: int, first: int, pages: Sequence[int]) -> None:
        slot = self.at(index)
        grown = [*(slot.tables[number].pages or [-1] * first), *pages]
        if len(grown) > self._limits.pages_per_slot:
            raise ValueError(f"the page table of slot {index} is full")
        if len(grown) < first:
            raise ValueError(f"the page table of slot {index} ends before its first page")
        for page in pages:
            if not 0 <= page < self._table_pages[number]:
                raise ValueError(f"page {page} is out of range")
        tables = list(slot.tables)
        tables[number] = PageTable(grown, first)
        self._change(index, replace(slot, tables=tables))

    def _empty_tables(self) -> list[PageTable]:
        return [PageTable([]) for _ in self._table_pages]

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
