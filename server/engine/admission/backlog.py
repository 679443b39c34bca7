"""The work of the requests that wait to be computed for the first time."""

from typing import NamedTuple

from numaserve.server.engine.admission.throughput import Throughput
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence

_FIRST_ESTIMATE = 128.0  # output tokens of a request, before any request has ended
_SMOOTHING = 16  # the expected answer length is an average of about this many requests


class Work(NamedTuple):
    """Work that waits, in tokens and in predicted seconds."""

    tokens: int
    seconds: float


class Backlog:
    """Counts waiting work in tokens, and in seconds as the scheduler's cost model predicts them.

    The number of requests says little, since one request can have a thousand times the work of another. An answer
    counts with the average length of recent answers, capped by its own limit: clients request more than models write.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: dict[str, Work] = {}
        self._output_tokens = _FIRST_ESTIMATE
        self._throughput = Throughput()
        self.tokens = 0
        self.seconds = 0.0  # as predicted when the requests came

    def enter(self, sequence: Sequence) -> None:
        """Count a new sequence as waiting."""
        work = self._waiting[sequence.request_id] = self.work_of(
            sequence.prompt_len, sequence.request.max_new_tokens, len(sequence.request.images)
        )
        self.tokens += work.tokens
        self.seconds += work.seconds

    def work_of(self, prompt: int, max_new_tokens: int, tiles: int = 0) -> Work:
        """Return the work of a sequence with a prompt of `prompt` tokens, and of images of `tiles` tiles."""
        output = round(min(self._output_tokens, max_new_tokens))
        tokens, limits = prompt + output, self._scheduler.config
        batch = max(1, min(limits.max_running, limits.capacity.num_pages * limits.page_size // tokens))
        chunk = prompt if limits.whole_prompts else self._scheduler.step_size.tokens
        seconds = self._scheduler.step_costs.request_seconds(prompt, output, chunk=chunk, batch=batch, tiles=tiles)
        return Work(tokens, seconds)

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence that left the queue; do nothing if it was removed before."""
        work = self._waiting.pop(sequence.request_id, None)
        if work is not None:
            self.tokens -= work.tokens
            self.seconds = self.seconds - work.seconds if self._waiting else 0.0

    def ended(self, sequence: Sequence, now: float) -> None:
        """Note the end of a sequence, for whatever reason."""
        self.leave(sequence)
        if sequence.cached_tokens is None:
            return  # nothing was computed for the sequence
        self._throughput.ended(now, len(sequence.tokens) - sequence.cached_tokens)
        if sequence.request.max_new_tokens:
            self._output_tokens += (len(sequence.output) - self._output_tokens) / _SMOOTHING

    def retry_after(self, now: float, more_tokens: int = 0) -> int:
        """Return the seconds after which a refused client may retry; `more_tokens` wait outside of the queue."""
        return self._throughput.retry_after(self.tokens + more_tokens, now)
