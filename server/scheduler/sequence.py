"""The scheduler's data types: a sequence, its updates by a step, and the limits."""

import enum
from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from numaserve.server.scheduler.cache.keys import Key
from numaserve.server.scheduler.cache.marks import Marks
from numaserve.server.scheduler.cache.radix_tree import Node
from numaserve.server.scheduler.position import Position
from numaserve.server.scheduler.request import Request
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.drafters import MAX_DRAFTS
from numaserve.workers.interface.protocol import PAGE_SIZE, TokenLogprobs
from numaserve.workers.interface.windows import BLOCK_PAGES, PageLayout, Window, WindowTable, window_tables

DEFAULT_TARGET_ITL_S = 0.1
DEFAULT_TARGET_STEPS = 3
DEFAULT_SPLIT_COST = 1.5
ECONOMICAL_STEP_S = 2.0
_NO_TURN = 1 << 62  # after all turns


@dataclass(frozen=True)
class SchedulerConfig:
    """The limits of a plan."""

    capacity: Capacity
    shared_step_tokens: int  # the most of a step with several sequences
    # The limit on a step's tokens is chosen between this one and `shared_step_tokens`; see `StepSize`. None: the limit
    # is `shared_step_tokens`.
    least_step_tokens: int | None = None
    enable_prefix_cache: bool = True
    kv_disk: bool = False  # cached pages go to disk, and come from it
    # Each prompt is in one step, whole, because tokens see later ones; several are packed into `shared_step_tokens`,
    # and a longer one has a step of its own. Its pages are used in that step alone, and nothing is ever sampled.
    whole_prompts: bool = False
    # Seconds that a step with output tokens may take for the sake of prompts. None: the longest of
    # `DEFAULT_TARGET_ITL_S`, the time of `DEFAULT_TARGET_STEPS` steps of the output tokens alone, and that of a chunk
    # whose tokens cost `DEFAULT_SPLIT_COST` times as much as in the longest chunk of the shortest limit on a step.
    target_itl_s: float | None = None
    vocab_size: int = 1 << 31  # token ids that workers know; draft tokens are below it
    worker_drafter: str | None = None  # the drafter in the workers, one of `WORKER_DRAFTERS`
    page_size: int = PAGE_SIZE  # smaller in tests only, where short sequences should cross many pages
    tokens_between_marks: int = 4096  # of a long prompt; smaller in tests only
    windows: tuple[Window, ...] = ()  # of layers with page tables of their own; empty: all use the common one
    block_pages: int = BLOCK_PAGES  # smaller in tests only
    rows_per_tile: int = 0  # feature rows of a tile of an image; 0: the model reads no images
    placeholder: int | None = None  # the token that stands for a feature row; never a draft token
    stages: int = 1  # pipeline stages, each of which can run a plan of its own
    # Tokens of an image see later ones of the same image: its rows are whole in a step, and no sequence goes on within
    # them.
    whole_images: bool = False

    def __post_init__(self) -> None:
        capacity, most = self.capacity, self.shared_step_tokens
        sizes = {
            "num_pages": capacity.num_pages,
            "context_length": capacity.context_length,
            "max_slots": capacity.max_slots,
            "max_logit_rows": capacity.max_logit_rows,
            "shared_step_tokens": most,
            "page_size": self.page_size,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}")
        if capacity.feature_tiles and self.rows_per_tile < 1:
            raise ValueError(f"rows_per_tile must be at least 1 with feature tiles, not {self.rows_per_tile}")
        if self.whole_images and self.shortest_limit <= self.rows_per_tile:
            raise ValueError(f"a step of {self.shortest_limit} tokens takes no image of {self.rows_per_tile} rows")
        if self.least_step_tokens is not None and not 1 <= self.least_step_tokens <= most:
            raise ValueError(f"least_step_tokens must be between 1 and {most}, not {self.least_step_tokens}")
        if self.whole_prompts and (
            self.enable_prefix_cache or capacity.num_snapshots or self.windows or self.worker_drafter is not None
        ):
            raise ValueError("whole prompts share no prefixes and have neither windows nor drafters")
        for window, num_pages in self.window_tables:
            least = window.least_pages(self.max_running, most, self.max_drafts, self.page_layout)
            if num_pages < least:
                raise ValueError(f"the table of window {window.tokens} needs at least {least} pages, not {num_pages}")

    @property
    def max_in_flight(self) -> int:
        """The most plans in flight: one for each stage; without stages, one that runs and one ahead."""
        return max(2, self.stages)

    @property
    def page_layout(self) -> PageLayout:
        """The sizes of pages and blocks."""
        return PageLayout(self.page_size, self.block_pages)

    @property
    def window_tables(self) -> tuple[WindowTable, ...]:
        """The page tables of `windows`."""
        return window_tables(self.windows, self.capacity)

    @property
    def max_drafts(self) -> int:
        """The most draft tokens of a sequence in a step."""
        return self.capacity.max_drafts or MAX_DRAFTS

    @property
    def max_running(self) -> int:
        """The most sequences that run at once: each must find a token and a logit row in every step, next to an image
        that is whole in a step."""
        tokens = self.shortest_limit - self.whole_rows
        return min(self.capacity.max_slots, tokens, self.capacity.max_logit_rows)

    @property
    def whole_rows(self) -> int:
        """The most rows of an image that must be in one step; 0: an image may be cut."""
        return self.rows_per_tile if self.whole_images else 0

    @property
    def shortest_limit(self) -> int:
        """The smallest limit on the tokens of a step."""
        return self.shared_step_tokens if self.least_step_tokens is None else self.least_step_tokens

    @property
    def max_sequence_tokens(self) -> int:
        """Prompt and output tokens of the longest sequence that can run: the context, or the whole KV cache if it is
        smaller."""
        return min(self.capacity.context_length, self.capacity.num_pages * self.page_size)


class SequenceState(enum.Enum):
    """The place of a sequence. A retracted one is WAITING again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class OpenTail:
    """The window pages of a running sequence, as of the plan in the making."""

    first: int = 0  # page of the sequence; those before it are not its own any more
    pages: list[int] = field(default_factory=list)  # from `first` on
    planned_first: int = 0  # `first` as workers know it

    @property
    def end(self) -> int:
        """The number of pages of the table, with those that are not there any more."""
        return self.first + len(self.pages)


@dataclass(eq=False, slots=True)
class Sequence:
    """One prompt and the tokens generated after it. What its client wants stands in `request` alone."""

    request_id: str  # the engine's: that of `request` need not be unique
    request: Request

    position: Position = field(init=False)  # its progress, and the only record of it
    tokens: list[int] = field(init=False)  # the tokens of `position`
    prompt_len: int = field(init=False)
    arrival: int = field(init=False, default=-1)
    place: int = field(init=False, default=0)  # in the queue of its client; the queue's
    turn: int = field(init=False, default=_NO_TURN)  # the number of its first admission; retractions leave it
    state: SequenceState = field(init=False, default=SequenceState.WAITING)
    cached_tokens: int | None = field(init=False, default=None)  # found in the cache at first admission; None before
    slot: int = field(init=False, default=-1)  # -1 unless running
    # The slot's page table on the workers: first the pages of `node`'s path, which the radix tree owns and `node`
    # locks; then this sequence's own. None and empty unless running.
    pages: list[int] = field(init=False, default_factory=list)
    node: Node | None = field(init=False, default=None)
    tails: list[OpenTail] = field(init=False, default_factory=list)  # of each window table; empty unless running
    marks: Marks | None = field(init=False, default=None)  # None unless running with states or window tables
    # It waits until another sequence has computed a prefix that they share (see `PrefixWaits`), or until one was read
    # from disk (see `DiskReads`). The longest shared prefix ended at `waited_to`, and turns below `waits_below` had
    # come when it first waited for that one.
    awaits_prefix: bool = field(init=False, default=False)
    waited_to: int = field(init=False, default=0)
    waits_below: int = field(init=False, default=0)
    # The names on disk of its prefixes of whole pages, as far as they were asked for, see `digests_of`.
    digests: list[bytes] = field(init=False, default_factory=list)
    disk_reads: int = field(init=False, default=0)  # for which it has waited
    disk_is_slower: bool = field(init=False, default=False)  # than computing its prefix
    # The mask of its next token was late: the sequence is not planned before the mask is there. For `careful` tokens
    # more it is planned only once its next mask is there.
    awaits_mask: bool = field(init=False, default=False)
    careful: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        request = self.request
        # As if the sequence had been sent back to the queue: draws and tokens before count as on the other server.
        self.position = Position(request.prompt, request.generated)
        self.tokens = self.position.tokens
        self.prompt_len = self.position.prompt_len

    @property
    def keys(self) -> ListOf[Key] | list[int]:
        """The keys of its positions, as far as they are known."""
        return self.position.keys

    @property
    def output(self) -> list[int]:
        """The generated tokens known so far."""
        return self.tokens[self.prompt_len :]

    @property
    def has_begun(self) -> bool:
        """True if it has run at some time."""
        return self.turn != _NO_TURN

    @property
    def num_remaining(self) -> int:
        """Positions to compute now: 1 in decode, more in prefill, 0 when only answers or a mask are awaited."""
        if self.awaits_mask or (self.careful and self.position.pending):
            return 0
        return self.position.remaining


@dataclass(frozen=True, slots=True)
class SequenceUpdate:
    """The update of a sequence by one answer."""

    sequence: Sequence
    token: int | None  # appended to `sequence.tokens`; None when the step sampled nothing
    logprobs: TokenLogprobs | None
    prompt_logprobs: list[TokenLogprobs]  # of the next prompt positions, from position 1 on, each once
    finished: bool  # the length is reached and the sequence released; stop tokens and strings are the caller's to find
    nan: bool = False  # its logits were not numbers: it has ended, with nothing
    embedding: bytes = b""  # in the form of its `Pooling`; empty unless it was pooled
    dropped: bool = False  # its constraint has failed, or allows nothing: it has ended, with nothing
    late: bool = False  # its mask was not there in time: it waits for the mask, and is sampled again
    token_logprobs: Iterable[float] = ()  # of the tokens that it names, where `token` is one
    drafter: str = ""  # whose draft token `token` was


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Counters for /metrics. Pages: free + cached + active = all."""

    pages_free: int
    pages_cached: int  # in the tree, used by no running sequence
    pages_active: int
    running: int
    waiting: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    retractions: int


@dataclass(frozen=True, slots=True)
class SnapshotStats:
    """Counters of a model with states for /metrics. Snapshots: free + cached + active = all."""

    free: int
    cached: int  # anchors of the tree
    active: int  # held by running sequences


@dataclass(frozen=True, slots=True)
class AnchorStats:
    """Counters of anchors for /metrics."""

    hits: int  # sequences that began from an anchor
    unanchored_tokens: int  # prompt tokens in cached pages that no anchor was at or after


@dataclass(frozen=True, slots=True)
class WindowStats:
    """Counters of the pages of all window tables for /metrics. Pages: free + cached + active = all."""

    free: int
    cached: int  # held by anchors alone
    active: int  # used by running sequences
