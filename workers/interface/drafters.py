"""The drafters in the workers, as far as the front end plans them. A worker runs at most one of them."""

from dataclasses import dataclass

from numaserve.workers.interface.protocol import KEPT_HIDDEN_STATES

MAX_DRAFTS = 16  # draft tokens of a sequence in a step; fewer where recurrent states must go back by them


@dataclass(frozen=True)
class WorkerDrafter:
    """A drafter that knows the tokens of a step before the front end does."""

    name: str  # in --speculative
    reads_drafts: bool  # has read its own draft tokens, except the last, like other tokens
    most_unread: int | None = None  # tokens of a sequence that it may leave unread; None: any number
    reads_prompts: bool = True  # reads tokens in order to draft others later


WORKER_DRAFTERS = {  # by their modules in workers/process/drafters
    "draft_model": WorkerDrafter("draft_model", reads_drafts=True),
    # A draft model that reads the served model's KV cache in place of its own.
    "assistant": WorkerDrafter("draft_model", reads_drafts=True, reads_prompts=False),
    # Reads each token with the model's hidden state of the token before, and workers keep those of the last tokens.
    "mtp": WorkerDrafter("mtp", reads_drafts=False, most_unread=KEPT_HIDDEN_STATES // 2),
}
