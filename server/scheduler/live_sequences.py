"""The sequences that have not ended."""

from numaserve.server.scheduler.errors import SequenceTooLong
from numaserve.server.scheduler.feature_pool import FeaturePool
from numaserve.server.scheduler.images import keys_of
from numaserve.server.scheduler.queue.queue import WaitingQueue
from numaserve.server.scheduler.running_set import RunningSet
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence, SequenceState
from numaserve.server.scheduler.suspects import Suspects


class LiveSequences:
    """Sequences from their arrival to their end, each running, waiting or held back as a suspect."""

    def __init__(
        self,
        config: SchedulerConfig,
        waiting: WaitingQueue,
        running_set: RunningSet,
        suspects: Suspects,
        features: FeaturePool,
    ) -> None:
        self.by_id: dict[str, Sequence] = {}
        self._config = config
        self._waiting = waiting
        self._running_set = running_set
        self._suspects = suspects
        self._features = features
        self._arrivals = 0

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence. Raises `SequenceTooLong` when it could never run, `ValueError` for an id in use.

        Raises `ValueError` also for one that samples where prompts are computed whole, and for images that the model
        does not read, or that are not inside of the prompt.
        """
        if self._config.whole_prompts and (seq.request.max_new_tokens > 0 or seq.request.prompt_logprobs):
            raise ValueError(f"request {seq.request_id!r} samples tokens from a model that only reads prompts")
        if seq.request_id in self.by_id:
            raise ValueError(f"request id {seq.request_id!r} is already in use")
        config, limit = self._config, self._config.max_sequence_tokens
        room = limit - min(1, seq.request.max_new_tokens)
        if not 0 < seq.prompt_len <= room:
            raise SequenceTooLong(
                f"the prompt has {seq.prompt_len} tokens and this server accepts 1 to {room} tokens (context length "
                f"{config.capacity.context_length}, KV cache of {config.capacity.num_pages * config.page_size} "
                "tokens): shorten the prompt"
            )
        if seq.request.images:
            if not config.capacity.feature_tiles:
                raise ValueError(f"request {seq.request_id!r} has images, and the model reads none")
            seq.position.set_prompt_keys(keys_of(seq.request.prompt, seq.request.images, config.rows_per_tile))
        seq.position.max_tokens = min(seq.prompt_len + max(0, seq.request.max_new_tokens), limit)
        seq.arrival = self._arrivals
        self._arrivals += 1
        self.by_id[seq.request_id] = seq
        self._waiting.enter(seq)

    def end(self, seq: Sequence) -> None:
        """Remove a sequence wherever it is. Its full pages stay cached, the rest is free."""
        if seq.state is SequenceState.RUNNING:
            self._running_set.leave(seq)
        elif seq not in self._suspects.held:
            self._waiting.take_out(seq)
        self._waiting.leave(seq)
        self._suspects.forget(seq)
        self._features.give_up_of(seq)
        seq.state = SequenceState.FINISHED
        del self.by_id[seq.request_id]

    def let_in(self, held: list[Sequence]) -> None:
        """Put sequences that were held back into the queue."""
        for seq in held:
            self._waiting.put_back(seq)

    def set_awaits_mask(self, seq: Sequence, *, awaits: bool) -> None:
        """Set whether a sequence is planned and admitted only when its mask is known; the queue sets it aside
        meanwhile."""
        waits = seq.state is SequenceState.WAITING and seq not in self._suspects.held
        if waits:
            self._waiting.take_out(seq)
        seq.awaits_mask = awaits
        if waits:
            self._waiting.put_back(seq)
