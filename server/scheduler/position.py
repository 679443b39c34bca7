"""The progress of a sequence through its tokens."""

from collections import Counter
from collections.abc import Iterable

from numaserve.server.scheduler.cache.keys import Key


class Position:
    """The known tokens of a sequence, its computed positions, and its samples and draft tokens in flight.

    Four transitions change it, and nothing else does: a part of the sequence was `planned` or `answered`, rejected
    draft tokens were `rewound`, or the sequence was `suspended`. The last two decide from where a sequence goes on.
    Keys and values of rejected draft tokens are overwritten in place, so a sequence can go back to any position.
    """

    __slots__ = (
        "computed",
        "drafter_read",
        "drafts",
        "keys",
        "logprob_rows_planned",
        "logprob_rows_received",
        "max_tokens",
        "pending",
        "prompt_len",
        "rejected",
        "resuming",
        "tokens",
    )

    def __init__(self, prompt: Iterable[int], generated: Iterable[int] = ()) -> None:
        """Start at the first token. `generated` is output that another server has sampled."""
        self.tokens = list(prompt)  # prompt and then output, as far as it is known; the list is never replaced
        self.prompt_len = len(self.tokens)
        self.tokens += generated
        self.keys: list[Key] | list[int] = self.tokens  # one list where all keys are tokens
        self.max_tokens = 0  # length at which the sequence ends, prompt and output
        self.computed = 0  # positions whose KV is written once every plan sent has run
        self.drafts = 0  # of these, draft tokens in flight: any of them may be rejected
        self.drafter_read = 0  # positions that the workers' drafter has read, if there is one
        self.pending = 0  # tokens sampled by plans in flight: they exist, their ids are not known yet
        # Positions whose prompt logprobs were planned, and received. They outlive a suspension: no row is sent twice.
        self.logprob_rows_planned = 0
        self.logprob_rows_received = 0
        self.resuming = len(self.tokens) > self.prompt_len  # its output had begun when its KV was lost with the workers
        self.rejected = Counter[str]()  # rejected draft tokens, by drafter

    def set_prompt_keys(self, prompt_keys: Iterable[Key]) -> None:
        """Set the keys of the prompt's positions, in place of its tokens.

        Raises `ValueError` if they are not as many as the tokens.
        """
        self.keys = [*prompt_keys, *self.tokens[self.prompt_len :]]
        if len(self.keys) != len(self.tokens):
            raise ValueError(f"a prompt of {self.prompt_len} tokens needs {self.prompt_len} keys")

    @property
    def next(self) -> int:
        """The next position to compute; each accepted draft token in flight will move it on by one."""
        return self.computed - self.drafts

    @property
    def unknown(self) -> int:
        """The most tokens that plans in flight may bring."""
        return self.pending + self.drafts

    @property
    def wants_sample(self) -> bool:
        """True if one more token is to be sampled after the tokens that exist.

        The length is known before the answer, except for draft tokens: nothing is planned after them that would go too
        far if all were accepted.
        """
        return len(self.tokens) + self.pending + self.drafts < self.max_tokens

    @property
    def remaining(self) -> int:
        """The positions to compute now: 1 in decode, more in prefill, 0 when only answers are awaited."""
        # The last token of a sequence is sampled and never computed, unless nothing is sampled at all.
        existing = len(self.tokens) + self.pending
        total = existing if existing + self.drafts < self.max_tokens else self.prompt_len
        return max(0, total - self.computed + self.drafts)

    def planned(self, length: int, drafts: int, drafter_read: int, sample: int = False, logprob_rows: int = 0) -> None:
        """Go on by `length` known positions, and by draft tokens after them. The workers' drafter reads as far as
        `drafter_read`."""
        self.computed += length + drafts
        self.drafts += drafts
        self.drafter_read = drafter_read
        self.pending += sample
        self.logprob_rows_planned += logprob_rows

    def answered(self, tokens: list[int], sample: int, logprob_rows: int = 0) -> None:
        """Take the answer to a part that was planned with these arguments.

        `tokens` are the sample and the samples after accepted draft tokens; none if the sample does not count.
        """
        self.pending -= sample
        self.logprob_rows_received += logprob_rows
        if tokens:
            self.tokens += tokens
            if self.keys is not self.tokens:
                self.keys += tokens
            self.resuming = False

    def rewound(self, drafts: int, accepted: int, drafter_read: int, drafter: str) -> None:
        """Go back before the first rejected one of `drafts` draft tokens, which have been answered.

        `drafter_read` is the number of accepted draft tokens that the workers' drafter need not read again.
        """
        self.rejected[drafter] += drafts - accepted
        if self.drafts:  # not suspended since
            self.drafts -= drafts
            self.computed -= drafts - accepted
            self.drafter_read += drafter_read

    def suspended(self, cached: int = 0, *, plans_lost: bool = False, ran: bool = False) -> None:
        """Start again from the first position, or after `cached` positions that the cache holds.

        A sequence is suspended when slot and pages are gone, and starts when it gets others. With `plans_lost`, the
        plans in flight are gone too; `ran` is True for a sequence that was in the running set.
        """
        self.computed = self.drafter_read = cached
        self.drafts = 0
        if plans_lost:
            self.pending = 0
            self.logprob_rows_planned = self.logprob_rows_received
            self.resuming = self.resuming or (ran and len(self.tokens) > self.prompt_len)
