"""Messages about steps: plans and their results."""

from __future__ import annotations

from typing import Literal

import msgspec
from numaserve.workers.interface.protocol.adapters import NO_ADAPTER

MAX_MASKED_DRAFTS = 8  # most draft tokens of a masked sequence in a step


def mask_rows(slots: int) -> int:
    """Return the number of rows of a mask board: for each slot, one row and one more after each draft token."""
    return slots * (1 + MAX_MASKED_DRAFTS)


MAX_LOGPROBS = 20
KEPT_HIDDEN_STATES = 128  # of a sequence's last tokens, in workers whose model has a predictor layer
# The form of the vector of a pooled sequence: all of its values in fp32, or encoded `SparseEntries`. `tokens`: a vector
# of each token after the first in its place, as `encoded_rows`.
VectorForm = Literal["whole", "sparse", "tokens"]
TO_BE_DRAFTED = -1  # placeholder of a draft token that the workers' draft model makes


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The sampling parameters of one sequence. Neutral values turn a stage off.

    The random numbers of a position are a pure function of (`seed`, position): a resumed or retracted request samples
    the same tokens again.
    """

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output tokens
    presence_penalty: float = 0.0  # over output tokens
    frequency_penalty: float = 0.0  # over output tokens
    seed: int = 0
    logit_bias: dict[int, float] = {}
    logprobs: int = -1  # -1: none; 0: of the chosen token; n: and of the n most likely, n <= MAX_LOGPROBS
    min_position: int = 0  # `suppress` is not sampled for positions below this one (min_tokens)
    suppress: list[int] = []  # token ids
    masked: bool = False  # each sample waits for its mask on the mask board and must be in the mask
    token_ids_logprob: list[int] = []  # tokens whose log-probabilities are returned at each sampled position

    @property
    def has_penalties(self) -> bool:
        """True if the sampler needs the previous tokens."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


class SlotInit(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The start of a sequence in a slot, which replaces the slot's previous content.

    The plan with this message has the whole page table: the pages of a cached prefix, then the first pages of its own.

    The histories are for the penalties. With `sampling.has_penalties` they are the whole prompt and all output tokens
    so far (a resumed sequence has some), however many of them the plans contain as `tokens`. Otherwise both are empty.
    A worker counts from the histories, adds each token that it samples afterwards, and counts no `tokens` of a plan.
    """

    sampling: SamplingParams
    prompt_history: list[int] = []
    output_history: list[int] = []
    # Declarations from which indices of its rows follow (`RowIndex`).
    second_text: int = 0  # position of the first token of its second text, of type 1; 0: it has no second text
    adapter: int = NO_ADAPTER  # number of its adapter
    # Three numbers for each of its images, ascending: the position of the first feature row, and the rows and columns
    # of the grid of feature rows. Rotary coordinates follow from them where the model has such.
    grids: list[int] = []


class SeqPlan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One sequence's part of a step: `num_tokens` new tokens at positions `start`, `start + 1`, ...

    With `from_previous` the first new token is the last token that this slot sampled. `tokens` then has only the draft
    tokens that workers make after it. If the previous plan had such draft tokens, `start` is the position if all of
    them are rejected. Each accepted draft token increases the position by one; the worker knows their number, but the
    front end does not yet.

    `pages` are appended to the slot's page table before the step: when the plan is run, not when it is received. A plan
    may give a slot or a page to another sequence while the previous plan still runs.
    """

    slot: int
    start: int
    tokens: list[int]
    from_previous: bool = False
    pages: list[int] = []
    init: SlotInit | None = None
    sample: bool = False  # whether to sample a token after the last position
    # For logprobs of an echoed prompt: the true next token of each position. Empty, or as long as `tokens`; shorter
    # where the chunk extends beyond the last position but one of the prompt.
    prompt_logprobs: list[int] = []
    pool: bool = False  # return a vector of the sequence; for a model loaded with `pooled`
    vector_form: VectorForm = "whole"  # of a sequence that is pooled

    @property
    def num_tokens(self) -> int:
        """The number of new tokens."""
        return len(self.tokens) + self.from_previous


class DraftWork(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The tokens of a sequence that the draft model reads. They are the unread tokens before `SeqPlan.start`,
    `lacking`, and then the known tokens of the plan. The draft model makes one draft token for each `TO_BE_DRAFTED` in
    the plan."""

    index: int  # of the sequence in the plan
    lacking: list[int] = []


class StateWork(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The snapshots of a sequence in a step of a model with recurrent states.

    Its states begin as those of snapshot `begin`, or with -1 as those of the slot, or as zeros at position 0. Each mark
    (position, snapshot) stores the states after that many tokens of the sequence; its position is after `start` of the
    plan, at most the end of the plan's known tokens, and above that of the mark before.
    """

    index: int  # of the sequence in the plan
    begin: int = -1
    marks: list[tuple[int, int]] = []


class WindowWork(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A change of a sequence's window table: the page table of the layers whose attention has one window.

    No token of this step and of later steps reads the `first` pages of the table, which are whole blocks and never get
    fewer. `pages` are appended before the step, as those of `SeqPlan` are. With `SlotInit` the table begins with
    `first` pages that are absent.
    """

    index: int  # of the sequence in the plan
    window: int  # number of the window table, in the order of the model's windows
    first: int
    pages: list[int] = []


class TowerWork(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A run of the vision tower before the step, or some of its parts (`Ready.tower_parts`).

    The run stores the features of a tile of an image in a place of the feature pool. Place p has rows p * n to p * n +
    n - 1 of the pool, where n is the number of feature rows of a tile, the most if tiles differ.

    The parts of a run are planned in order, over as many steps as the front end likes. A run that begins while another
    one has parts left ends that one, which can only begin again.
    """

    tile: int  # number in the image store, whose pixels are read at the beginning of the run
    place: int  # where the last part stores the features
    begin: int = 0  # the first part
    end: int = 0  # the part after the last; 0: all parts that are left
    rows: int = 0  # of the grid of features, where tiles differ; else 0
    cols: int = 0


class PlacedRows(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Rows of the feature pool that replace embeddings of a sequence.

    Positions `start` to `start + count - 1`, all among the new tokens of the plan, take the rows from `row` on in place
    of the embeddings of their tokens.
    """

    index: int  # of the sequence in the plan
    start: int
    count: int
    row: int


class StepPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="plan"):
    """The work of one step, for every rank."""

    step_id: int
    seqs: list[SeqPlan]
    deadline_s: float = 0.0  # of each wait for another rank; 0: the deadline of the `Launch`
    # The number of draft tokens at the end of each sequence. A token is sampled after the last known token and after
    # each draft token. Left out where no sequence has any.
    drafts: list[int] | msgspec.UnsetType = msgspec.UNSET
    # The draft model's work before the step, one entry for each sequence that it reads. Left out without a draft model.
    draft_work: list[DraftWork] | msgspec.UnsetType = msgspec.UNSET
    # One entry for each sequence that begins with a snapshot or stores some. Left out where none does.
    states: list[StateWork] | msgspec.UnsetType = msgspec.UNSET
    # One entry for each window table that changes. Left out where none does.
    windows: list[WindowWork] | msgspec.UnsetType = msgspec.UNSET
    # The vision tower's work before the step, in this order. Left out where it has none.
    tower: list[TowerWork] | msgspec.UnsetType = msgspec.UNSET
    # The image features that the step's sequences read. No two entries name the same token. Left out where none does.
    placed: list[PlacedRows] | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to compute, as in a heartbeat."""
        return not (self.seqs or self.tower)

    @property
    def drafts_of_each(self) -> list[int]:
        """The number of draft tokens of each sequence; zeros where `drafts` is left out."""
        return self.drafts or [0] * len(self.seqs)


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Log-probabilities (natural logarithm, of the unmodified distribution) at one position."""

    token: int
    logprob: float
    top_ids: list[int] = []  # most likely first
    top_logprobs: list[float] = []


class SampledToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A token that was sampled after an accepted draft token, with the log-probabilities that its request asks for."""

    token: int
    logprobs: TokenLogprobs | None = None
    token_logprobs: list[float] = []  # of `token_ids_logprob`, in that order


class SeqResult(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The result of one sequence of a plan. `token` is -1 where the plan requested no sample.

    With `nan`, a row of logits held a NaN or had no finite maximum, or the embedding has values that are not numbers.
    Token, log-probabilities and embedding are then meaningless. The worker can still continue from the token, which is
    in the vocabulary. The same holds with `dropped`: the mask's state is a drop, or the mask allows no token. With
    `late` the mask was not ready in time: `token` is a placeholder for a sample to be repeated, and no token follows
    it.
    """

    token: int = -1
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs] = []
    nan: bool = False
    dropped: bool = False
    token_logprobs: list[float] = []  # of `token_ids_logprob`, in that order; empty where nothing was sampled
    # The vector of a sequence that is pooled, otherwise empty: fp32, little-endian, or as `vector_form` says.
    embedding: bytes = b""
    # The tokens that were sampled after `token`, one after each accepted draft token.
    following: list[SampledToken] = []
    late: bool = False

    @property
    def tokens(self) -> list[int]:
        """All sampled tokens, in order."""
        return [self.token, *(each.token for each in self.following)] if self.token >= 0 else []


class StepResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="result"):
    """The answer of rank 0 to a plan, with `seqs` in the plan's order. The other ranks answer with empty `seqs`, so
    that the front end receives their progress and timings too."""

    step_id: int
    rank: int
    seqs: list[SeqResult]
    native_ns: int  # inside the native call
    all_reduce_ns: int  # of native_ns, in collectives, on thread 0
    worker_ns: int  # from plan received to result sent
    mask_wait_ns: int = 0  # of native_ns, waiting for masks, on the thread that waited longest
    draft_ns: int = 0  # of worker_ns, in the draft model
    tower_ns: int = 0  # of worker_ns, in the vision tower
