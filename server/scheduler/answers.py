"""The meaning of a plan's answers for its sequences."""

from collections import Counter, deque

from numaserve.server.scheduler.feature_pool import FeaturePool
from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.server.scheduler.live_sequences import LiveSequences
from numaserve.server.scheduler.running_set import RunningSet
from numaserve.server.scheduler.sequence import Sequence, SequenceState, SequenceUpdate
from numaserve.server.scheduler.step import Entry, InFlight
from numaserve.server.scheduler.suspects import Suspects
from numaserve.server.speculation.reports import Sampled
from numaserve.workers.interface.protocol import SeqResult

CAREFUL_TOKENS = 64  # of a sequence whose mask was late, for which it is planned only once its mask is there


class Answers:
    """Applies the answers to a plan to its sequences: they go on, take a sample back, or end."""

    def __init__(
        self,
        kv: KVCache,
        running_set: RunningSet,
        live: LiveSequences,
        suspects: Suspects,
        in_flight: deque[InFlight],
        *,
        features: FeaturePool,
        learns: bool,
    ) -> None:
        """Apply answers while `in_flight` has the plans after the answered one. Tokens are kept for `take_sampled` if
        speculation `learns` from them."""
        self._learns = learns
        self._kv = kv
        self._running_set = running_set
        self._live = live
        self._suspects = suspects
        self._in_flight = in_flight
        self._features = features
        self._sampled: list[Sampled] = []
        self.drafted: Counter[tuple[str, bool]] = Counter()

    def take_sampled(self) -> list[Sampled]:
        """Return the tokens that were sampled since the last call."""
        sampled, self._sampled = self._sampled, []
        return sampled

    def apply(self, entry: Entry, answer: SeqResult) -> list[SequenceUpdate]:
        """Apply an answer to the sequence of its entry, which has not ended. Return the updates of the sequence."""
        seq, at = entry.seq, entry.seq.position
        if entry.void:
            at.answered([], entry.sample)
            return []
        end = entry.known_end + len(answer.following)
        self._suspects.answered(seq, end)
        if answer.nan or answer.dropped or answer.late:
            at.answered([], entry.sample, entry.logprob_rows)
        if answer.nan:
            return [self._end_without_logits(seq)]
        if answer.dropped:
            self._live.end(seq)
            return [SequenceUpdate(seq, None, None, [], finished=True, dropped=True)]
        if answer.late:
            return [self._take_back(seq, end, answer)]
        if seq.state is SequenceState.RUNNING and (entry.sample or entry.logprob_rows or entry.pool):
            self._kv.trust(seq, end)
        tokens = answer.tokens
        at.answered(tokens, entry.sample, entry.logprob_rows)
        if entry.drafts:
            self._verified(entry, len(answer.following))
        if entry.sample:
            self._note_sample(entry, tokens)
        finished = len(seq.tokens) >= at.max_tokens and end >= seq.prompt_len
        if finished:
            self._live.end(seq)
        if not (entry.sample or entry.logprob_rows or finished):
            return []
        return entry.updates(answer, finished=finished)

    def _end_without_logits(self, seq: Sequence) -> SequenceUpdate:
        """End a sequence whose logits are not numbers, and let its pages and the features of its images go with it.

        The next plan may be under way, with `from_previous`. That is no harm: the worker goes on from the token that it
        has put in the sample's place, which is one of the vocabulary, in pages that were the sequence's when that plan
        was made, and the answer is dropped, as for every sequence that has ended. If that plan has admitted another
        sequence to the same pages, it sees no more of the NaN than it has tokens in common, and ends by itself if need
        be. A page's next first token clears it (in the kernels), so that a NaN stays nowhere.
        """
        self._live.end(seq)
        self._kv.forget(seq)
        for _, tile, _ in seq.request.images:
            self._features.forget((seq.request.scope.without_adapter, tile.digest))
        return SequenceUpdate(seq, None, None, [], finished=True, nan=True)

    def _take_back(self, seq: Sequence, end: int, answer: SeqResult) -> SequenceUpdate:
        """Take back a sample whose mask was late, and the part that was planned after it."""
        if self._in_flight:
            self._in_flight[0].take_back(seq)
        seq.careful = CAREFUL_TOKENS
        if seq.state is SequenceState.RUNNING:
            self._kv.trust(seq, end)
            self._running_set.suspend(seq)
        self._live.set_awaits_mask(seq, awaits=True)
        return SequenceUpdate(seq, None, None, answer.prompt_logprobs, finished=False, late=True)

    def _verified(self, entry: Entry, accepted: int) -> None:
        """Go back before the first rejected draft token, and count."""
        if self._in_flight and entry.seq in self._in_flight[0].drafted_by_workers:
            read = accepted  # by the plan in flight
        else:
            read = min(accepted, entry.drafts - 1) if entry.draft.reads else 0
        name = entry.draft.drafter
        entry.seq.position.rewound(entry.drafts, accepted, read, name)
        self.drafted.update({(name, True): accepted, (name, False): entry.drafts - accepted})

    def _note_sample(self, entry: Entry, tokens: list[int]) -> None:
        seq = entry.seq
        if seq.careful:
            seq.careful -= 1
            self._live.set_awaits_mask(seq, awaits=True)
        if self._learns:
            self._sampled.append(Sampled(seq, tokens, entry.by_workers))
