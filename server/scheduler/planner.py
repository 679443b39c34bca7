"""The filling of a plan: decodes first, and prompts with the rest of the step."""

from collections.abc import Mapping

from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.server.scheduler.policy import Chunk
from numaserve.server.scheduler.queue.queue import WaitingQueue
from numaserve.server.scheduler.running_set import RunningSet
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence, SequenceState
from numaserve.server.scheduler.step import StepBuilder, slot_init
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.reports import Draft, DraftBudget
from numaserve.server.speculation.speculation import Speculation
from numaserve.workers.interface.protocol import SlotInit


class Planner:
    """Plans the sequences that `RunningSet` and `WaitingQueue` put first, as far as the step's budget allows."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCache,
        waiting: WaitingQueue,
        running_set: RunningSet,
        speculation: Speculation | None = None,
    ) -> None:
        self._stages = config.stages
        self._whole_rows = config.whole_rows
        self._workers_draft = config.worker_drafter is not None
        self._speculation = speculation
        self._kv = kv
        self._waiting = waiting
        self._running_set = running_set

    def fill(self, step: StepBuilder) -> list[Sequence]:
        """Fill an empty plan. Return the sequences that begin in it for the first time."""
        self._running_set.make_room()
        return self._compute_prompts(step, self._continue_decodes(step))

    def _continue_decodes(self, step: StepBuilder) -> list[Sequence]:
        """Plan the next token of all that have one. Return the others that have more to compute, by turn.

        Rows of an image are a prompt even where one position is left, as in decodes: it may have to wait for a place.
        """
        ranked = self._running_set.ranked()
        decodes, prompts = self._cohort(ranked), []
        if self._running_set.before_images:
            self._running_set.pass_images()
            prompts = [seq for seq in self._running_set.before_images if seq.num_remaining]
            decodes = [seq for seq in decodes if seq not in prompts]
        drafts = self._drafts(step, ranked if self._stages == 1 else decodes)
        for seq in decodes:
            if seq.state is not SequenceState.RUNNING:
                break  # retracted in favour of an earlier one, like all sequences after it
            remaining = seq.num_remaining
            if remaining == 1:
                chunk = step.budget.take(seq)
                pages = self._running_set.grow(seq, ranked)
                if pages is not None and seq in drafts:
                    draft = drafts[seq]
                    more, found = self._running_set.grow_for_drafts(seq, len(draft.tokens))
                    pages += more
                    chunk = step.budget.draft(chunk, draft._replace(tokens=draft.tokens[:found]))
                if pages is not None:
                    self._plan(step, seq, chunk, pages)
            elif remaining:
                prompts.append(seq)
        return sorted((seq for seq in prompts if seq.state is SequenceState.RUNNING), key=lambda seq: seq.turn)

    def _cohort(self, ranked: list[Sequence]) -> list[Sequence]:
        """Return the sequences that may be in the plan: with stages, no more decodes than are an even share of all, and
        none whose last token is not known yet. The plans in flight have the others, and so all stages have work.

        Chunks of a prompt follow each other through the stages.
        """
        if self._stages == 1:
            return list(ranked)
        decoding = [seq for seq in ranked if seq.num_remaining == 1]
        share = -(-len(decoding) // self._stages)
        known = set([seq for seq in decoding if not seq.position.unknown][:share])
        return [seq for seq in ranked if seq in known or seq.num_remaining > 1]

    def _drafts(self, step: StepBuilder, running: list[Sequence]) -> Mapping[Decode, Draft]:
        """Return the draft tokens to verify.

        Each of `running` keeps the token and the row that it must find, and prompts keep half of the rest: none would
        end, or begin, next to sequences whose whole output can be drafted.
        """
        if self._speculation is None:
            return {}
        # Ahead of an answer the front end mostly cannot draft, and the remaining tokens need not be counted.
        some = self._workers_draft or any(not seq.position.pending for seq in running)
        decodes = [seq for seq in running if seq.num_remaining == 1 and seq.position.wants_sample] if some else []
        rows = step.budget.beyond(len(running) + self._whole_rows * self._have_images())
        if decodes and (self._waiting or any(seq.num_remaining > 1 for seq in running)):
            rows //= 2
        proposal = self._speculation.propose(decodes, DraftBudget(rows, step.in_flight.step_id))
        step.reading, step.in_flight.expected = proposal.reading, proposal.expected
        step.unchecked = proposal.unchecked
        return proposal.drafts

    def _have_images(self) -> bool:
        """Return whether prompts have rows of images to compute, or may have some."""
        return bool(self._running_set.before_images or self._waiting)

    def _compute_prompts(self, step: StepBuilder, prompts: list[Sequence]) -> list[Sequence]:
        """Plan chunks of `prompts`, and of waiting sequences. Return the sequences that begin for the first time."""
        begun: list[Sequence] = []
        newcomer = self._running_set.newcomer()
        if step.tower is not None:
            step.tower.keep_begun(prompts, newcomer)
        while step.budget.is_open:
            seq = self._waiting.next_prompt(prompts, newcomer)
            if seq is None:
                break
            if seq is not newcomer:
                prompts.remove(seq)
                if self._begins(step, seq, seq.position.computed):
                    self._compute(step, seq, [])
                continue
            is_new = not seq.has_begun
            if not (step.budget.has_room(seq) and self._can_begin(step, seq) and self._running_set.admit(seq)):
                newcomer = None  # no other sequence overtakes it
                continue
            if is_new:
                begun.append(seq)
            newcomer = self._running_set.newcomer()  # first: its prefix may end in this chunk, and want a mark there
            self._compute(step, seq, list(seq.pages), slot_init(seq))
        return begun

    def _can_begin(self, step: StepBuilder, seq: Sequence) -> bool:
        """Return whether a waiting sequence finds the features that its first chunk needs: none can be admitted without
        a chunk."""
        return not seq.request.images or self._begins(step, seq, self._kv.reusable(seq))

    def _begins(self, step: StepBuilder, seq: Sequence, start: int) -> bool:
        """Return whether the position `start` of a prompt can be in the step. Parts of the run that it waits for are
        planned."""
        if not seq.request.images:
            return True
        tokens = step.budget.add_parts(seq, start)
        if tokens:
            self._waiting.computed(seq, tokens)
        return step.budget.is_open and step.budget.begins(seq, start)

    def _compute(self, step: StepBuilder, seq: Sequence, pages: list[int], init: SlotInit | None = None) -> None:
        """Plan the next chunk of a prompt."""
        chunk = step.budget.take(seq)
        tokens: float = chunk.length
        if seq.request.images and step.tower is not None:
            tokens += step.tower.add(len(step.plans), seq, seq.position.computed + chunk.length)
        self._waiting.computed(seq, tokens)
        self._plan(step, seq, chunk, pages, init)

    def _plan(
        self, step: StepBuilder, seq: Sequence, chunk: Chunk, pages: list[int], init: SlotInit | None = None
    ) -> None:
        if self._kv.windows is not None:
            length, begins = chunk.length + len(chunk.draft.tokens), init is not None
            step.windows += self._kv.windows.plan(seq, length, len(step.plans), begins=begins)
        if self._kv.anchors is not None:
            step.states += self._kv.state_work(seq, chunk.length, len(step.plans))
        step.add(seq, chunk, pages, init)
        self._kv.publish(seq)
