"""The numbers of slots and snapshots for recurrent states, where the operator leaves them out.

A slot holds the states of a running sequence. A snapshot is a copy from which other sequences continue: without
snapshots no prefix is reused. Snapshots take a quarter of the memory that weights, scratch and slots leave, and the KV
cache takes the rest. For Qwen3.5 that is a snapshot for each 7,000 to 10,000 tokens of the KV cache, a long
conversation. With more snapshots their pages would be evicted first, and with fewer the pages could not be used.
Where the KV cache needs less than its part for sequences of full length in all slots, snapshots take what it leaves.

By default there are fewer slots where less than one and a half snapshots for each would remain. A running conversation
needs a snapshot of its last turn, and shares those of its system prompt.
"""

import math
from collections.abc import Iterator

from numaserve.workers.interface.drafters import MAX_DRAFTS
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.partition import Partition, RankPart
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning import reference
from numaserve.workers.planning.options import DeploymentOptions

SNAPSHOT_SHARE = 4  # the divisor of memory: a quarter
_DRAFTS_SHARE = 4  # the divisor of the memory of states
_LEAST_DRAFTS = 4
_LEAST_FOR_EACH_SLOT = 1.5
_MOST_FOR_EACH_SLOT = 8  # more than enough for conversations that are idle


def least_snapshots(slots: int) -> int:
    """Return the number of snapshots below which a default number of slots is lowered."""
    return math.ceil(_LEAST_FOR_EACH_SLOT * slots)


def most_snapshots(slots: int) -> int:
    """Return the limit on a default number of snapshots."""
    return _MOST_FOR_EACH_SLOT * slots


def slot_counts(options: DeploymentOptions, model: ModelConfig) -> Iterator[int]:
    """Yield the numbers of slots to try, the preferred one first."""
    count = options.max_running_requests
    yield count
    while options.may_run_fewer and model.has_states and count > 1:
        count //= 2
        yield count


def max_drafts(options: DeploymentOptions, model: ModelConfig, partition: Partition) -> int:
    """Return the most draft tokens of a sequence in a step; 0 without draft tokens, or without states.

    A slot keeps what its states need to go on from each draft token of the last step. This takes up to a quarter of the
    memory of the states, unless that would be very few draft tokens.
    """
    if not (options.drafts and model.has_states):
        return 0
    decoder = model.decoder
    states, draft = (sum(map(count, partition.ranks)) for count in (decoder.state_bytes, decoder.draft_bytes))
    return min(MAX_DRAFTS, max(_LEAST_DRAFTS, states // (_DRAFTS_SHARE * draft)))


def draft_bytes(options: DeploymentOptions, model: ModelConfig, part: RankPart) -> int:
    """Return the memory of a slot on one rank for the draft tokens of its last step."""
    return reference.draft_bytes(model, part, options.backend) * max_drafts(options, model, part.partition)


def check_state_cache(options: DeploymentOptions, model: ModelConfig) -> None:
    """Raise `OperatorError` for snapshots of a model that has no states."""
    if options.state_cache_gib and not model.has_states:
        raise OperatorError(
            f"--state-cache-gib {options.state_cache_gib:g} needs a model with recurrent layers, and this model has"
            " none: leave the option out"
        )
