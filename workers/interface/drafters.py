"""The drafters in the workers, as far as the front end plans them. A worker runs at most one of them."""

from dataclasses import dataclass

from numaserve.workers.interface.protocol import KEPT_HIDDEN_STATES

MAX_DRAFTS = 16  # draft tokens of a sequence in a step; fewer where recurrent states must go back by them


@dataclass(frozen=True)
class WorkerDrafter:
    """A drafter that knows the tokens of a step before the front end does."""

    name: str  # in --speculative, and of its module in workers/process/drafters
    reads_drafts: bool  # has read its own draft tokens, except the last, like other tokens
    most_unread: int | None = None  # tokens of a sequence that it may leave unread; None: any number


_ALL = (
    WorkerDrafter("draft_model", reads_drafts=True),
    # Reads each token with the model's hidden state of the token before, and workers keep those of the last tokens.
    WorkerDrafter("mtp", reads_drafts=False, most_unread=KEPT_HIDDEN_STATES // 2),
)
WORKER_DRAFTERS = {each.name: each for each in _ALL}
