"""Sequences for tests of the scheduler and its neighbours."""

from collections.abc import Sequence
from typing import Any

from numaserve.server.scheduler.request import Request
from numaserve.server.scheduler.sequence import Sequence as ScheduledSequence
from numaserve.workers.interface.protocol import SamplingParams


def sequence(
    name: str, prompt: Sequence[int], sampling: SamplingParams, max_new_tokens: int, **fields: Any
) -> ScheduledSequence:
    """A sequence of a request with the same name and with these `fields`."""
    return ScheduledSequence(name, Request(name, prompt, sampling, max_new_tokens, **fields))
