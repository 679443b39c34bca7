"""The size limits of a deployment."""

from __future__ import annotations

import msgspec
from msgspec import structs

PAGE_SIZE = 32  # tokens in a page of KV cache


class Capacity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The size limits of a deployment, or of one Program.

    Planning decides them, and the record goes whole from there to the scheduler and through `Launch` to the workers and
    the kernels. A limit is a field here and in kernels/runtime/capacity.h, and is named again only where it is decided
    and where it takes effect. None has a default: a limit that was not decided must not pass for one.
    """

    num_pages: int  # of KV cache
    context_length: int  # prompt and output tokens of a sequence
    max_slots: int  # sequences that run at a time
    max_step_tokens: int  # prompt and output tokens of a step
    max_logit_rows: int  # rows of logits of a step: samples and prompt log-probabilities; or sequences that it pools
    num_snapshots: int  # of the states of a sequence; 0: the model has no states, or none are stored
    max_drafts: int  # draft tokens of a sequence in a step that its states can go back by; 0: it has no states
    # Pages of each window table, in the order of the model's windows. Empty: all layers use the same pages.
    window_pages: tuple[int, ...]
    feature_tiles: int  # tiles of images whose features a rank holds at a time; 0: the model reads no images

    @property
    def pages_per_slot(self) -> int:
        """The pages of the longest sequence."""
        return -(-self.context_length // PAGE_SIZE)

    @property
    def table_pages(self) -> tuple[int, ...]:
        """The pages of each page table: the common one, then the window tables."""
        return self.num_pages, *self.window_pages

    def without_window_tables(self) -> Capacity:
        """Return the limits of a Program whose layers all use the common page table."""
        return structs.replace(self, window_pages=())

    @classmethod
    def of_program(
        cls, max_step_tokens: int, max_logit_rows: int, max_slots: int, pages_per_slot: int, num_pages: int
    ) -> Capacity:
        """Return the limits of a Program without snapshots, draft tokens, window tables and images."""
        return cls(
            num_pages=num_pages,
            context_length=pages_per_slot * PAGE_SIZE,
            max_slots=max_slots,
            max_step_tokens=max_step_tokens,
            max_logit_rows=max_logit_rows,
            num_snapshots=0,
            max_drafts=0,
            window_pages=(),
            feature_tiles=0,
        )
