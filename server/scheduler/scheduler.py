"""Continuous batching: which sequences run in the next step, and what the step's result means for them."""

from collections import Counter, deque
from collections.abc import Iterable

from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.answers import Answers
from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.server.scheduler.disk.tier import DiskTier
from numaserve.server.scheduler.drafting import make_speculation
from numaserve.server.scheduler.errors import ResultMismatch
from numaserve.server.scheduler.feature_pool import FeaturePool
from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.server.scheduler.live_sequences import LiveSequences
from numaserve.server.scheduler.planner import Planner
from numaserve.server.scheduler.queue.queue import WaitingQueue
from numaserve.server.scheduler.running_set import RunningSet
from numaserve.server.scheduler.sequence import (
    SchedulerConfig,
    SchedulerStats,
    Sequence,
    SequenceState,
    SequenceUpdate,
    SnapshotStats,
)
from numaserve.server.scheduler.step import InFlight, MaskedRow, StepBuilder
from numaserve.server.scheduler.step_costs import StepCosts
from numaserve.server.scheduler.step_size import StepSize
from numaserve.server.scheduler.suspects import Finding, Suspects
from numaserve.server.scheduler.tower_runs import TowerRuns
from numaserve.server.speculation.drafter import Drafters
from numaserve.server.speculation.reports import (
    ConstraintReport,
    DraftBudget,
    Report,
    SequencesEnded,
    Unchecked,
    WorkersDied,
    WorkersIdled,
)
from numaserve.workers.interface.protocol import StepPlan, StepResult


class Scheduler:
    """Decides what runs. Nothing here waits, reads a clock or talks to anyone.

    Plain loop: ``plan = schedule()``, run it, ``apply(result)``. One step ahead: `schedule` is called once more before
    the result is in; a sequence whose sample is in flight is then planned with `from_previous`, one position further.

    **Plans in flight, and why pages and slots are reused at once.** Workers run plans strictly in the order in which
    they are made, and change a slot's page table when they run a plan, not when they receive it. What counts is
    therefore the holder of a page when a plan was *made*: a plan touches only pages that its sequences held then. When
    a sequence ends or is retracted while plan N+1 still names it, its pages and slot are given out again from plan N+2
    on, and every access of N+1, the surplus ones too, happens before every access of N+2. The new holder reads only
    positions that it has itself written since, or pages found in the tree, which plans made earlier have written.
    Keeping pages back until N+1 is answered would add a state to every page and protect nothing.

    Only the knowledge of token ids is late. A result for a sequence that has ended is dropped. A result for a
    retracted sequence is kept (its tokens are the same whatever the batch), and the sequence is admitted again only
    after it has come. Ends by length are known ahead, so nothing is planned past them.

    A sequence whose mask was late takes its sample back, and is retracted until the mask is there: to sample again in
    the same place would write to pages that may be shared. The part of the sequence in the plan in flight rests on a
    placeholder token: it is void, in a page that no sequence finds, since its tokens are not known.

    With pipeline stages there are as many plans in flight, and a sequence waits for its sample: the first stage does
    not know what the last one samples. `Planner` therefore divides the sequences among the plans. The argument about
    pages holds for each stage, since each runs all plans in their order.

    `RunningSet` and `WaitingQueue` describe which sequences run, which give way, and why nothing deadlocks.

    Changes of cached pages are noted in `log`, if there is one. With `drafters`, steps verify draft tokens (see
    `Speculation`). The progress of a sequence with draft tokens is known only by the answer. The next draft tokens of
    the front end follow the answer, so no plan is made before it. Workers that draft know the answer: the next plan
    continues from the least possible position, has pages for the greatest, and the workers move the sequence on.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        log: KVEventLog | None = None,
        drafters: Drafters | None = None,
    ) -> None:
        self.config = config
        self.kv = KVCache(config, log)
        self.features = FeaturePool(config.capacity.feature_tiles)
        has_tower = config.capacity.feature_tiles > 0
        self.step_costs = StepCosts(draft_model=config.worker_drafter is not None, tower=has_tower)
        self.costs = self.step_costs.served
        self.step_size = StepSize(config, self.step_costs)
        self.waiting = WaitingQueue()
        self._suspects = Suspects()
        self.disk: DiskTier | None = None
        if config.kv_disk:
            self.disk = DiskTier(
                self.kv, self.waiting, config.page_size, self.step_costs.prompt_seconds, self._suspects.is_suspect
            )
        self.running_set = RunningSet(config, self.kv, self.waiting, self.disk)
        self._speculation = None if drafters is None else make_speculation(config, self.step_costs, drafters)
        self._planner = Planner(config, self.kv, self.waiting, self.running_set, self._speculation)
        self.in_flight: deque[InFlight] = deque()
        self.newly_admitted: list[Sequence] = []  # for the first time, by the last `schedule`
        self.masked: list[MaskedRow] = []  # of the last plan
        self.unchecked: list[Unchecked] = []  # draft tokens that the last `schedule` has made
        self._next_step = 0
        self.live = LiveSequences(config, self.waiting, self.running_set, self._suspects, self.features)
        learns = self._speculation is not None
        self._answers = Answers(
            self.kv, self.running_set, self.live, self._suspects, self.in_flight, features=self.features, learns=learns
        )

    @property
    def running(self) -> list[Sequence]:
        """The sequences that have slots, in order of turns."""
        return self.running_set.running

    @property
    def drafted(self) -> Counter[tuple[str, bool]]:
        """Verified draft tokens, by drafter and whether they were accepted."""
        return self._answers.drafted

    @property
    def held(self) -> list[Sequence]:
        """The sequences that are kept out of the queue: the workers may have died of one of them."""
        return self._suspects.held

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence. Raises `SequenceTooLong` when it could never run, `ValueError` for an id in use."""
        self.live.add(seq)

    def finish(self, request_id: str) -> bool:
        """End a sequence, running or waiting, because a stop was found or its client has left.

        Its full pages stay cached, the rest is free at once, and results in flight for it are dropped. False when there
        is no sequence of this id: an end by length may have been faster.
        """
        seq = self.live.by_id.get(request_id)
        if seq is None:
            return False
        self._end([seq])
        return True

    def mask_known(self, seq: Sequence) -> None:
        """Let a sequence go on whose next mask is there now."""
        self.live.set_awaits_mask(seq, awaits=False)

    def constraints_reported(self, reports: Iterable[ConstraintReport]) -> None:
        """Note what matchers have reported about the constraints of sequences that have not ended."""
        for report in reports:
            self._observe(report)

    def schedule(self) -> StepPlan | None:
        """Return the next plan, to be sent at once; None when there is nothing to run before the next result."""
        self.newly_admitted, self.unchecked = [], []
        if len(self.in_flight) == self.config.max_in_flight:
            return None
        if self._waits_for_drafts():
            return None
        if self.held:
            self.live.let_in(self._suspects.next_on_trial())
        self.kv.begin_step(self.running)
        tokens, tower = self.step_size.tokens, None
        if self.step_costs.tower is not None:
            tower = TowerRuns(self.features, self.config.rows_per_tile, self.step_costs.of_run(tokens))
        draft_costs = self.step_costs.draft_model
        step = StepBuilder(self._next_step, self.config, self.costs, draft_costs, tokens, tower=tower)
        self.newly_admitted = self._planner.fill(step)
        self.masked = step.masked
        self.unchecked += step.unchecked
        if not step.plans and not (tower is not None and tower.works):
            return None
        self._next_step += 1
        self.in_flight.append(step.in_flight)
        return step.finish()

    def beat(self) -> StepPlan:
        """Return an empty plan, to be sent at once while none is in flight: its answer shows that the workers live."""
        record = InFlight(self._next_step)
        self._next_step += 1
        self.in_flight.append(record)
        return StepPlan(record.step_id, [])

    def apply(self, result: StepResult) -> list[SequenceUpdate]:
        """Apply rank 0's result of the oldest plan in flight. Return the updates of sequences that still live.

        A sequence that has reached its length is released here (`finished`); for others the caller looks for stop
        tokens and strings and calls `finish`. Raises `ResultMismatch`, and changes nothing, if it is not the answer.
        """
        if not self.in_flight:
            raise ResultMismatch(f"received the result of step {result.step_id} while no step was pending")
        self.in_flight[0].check(result)
        record = self.in_flight.popleft()
        if record.places:
            self.features.unlock(record.places)
        updates: list[SequenceUpdate] = []
        if record.run_share and not record.entries:
            self.step_costs.observe(record, result)
        if record.entries:  # it is neither void nor a beat
            predicted = None if self._speculation is None else self.step_costs.predicted(record)
            self.step_costs.observe(record, result)
            self.step_size.observe(record, result)
            for entry, answer in zip(record.entries, result.seqs, strict=True):
                if entry.seq.state is not SequenceState.FINISHED:
                    updates += self._answers.apply(entry, answer)
            if self._speculation is not None:
                sampled = self._answers.take_sampled()
                self._speculation.observe(record.report(result, sampled, predicted))
                self._speculation.observe(SequencesEnded([each.sequence for each in updates if each.finished]))
        if record.drafts and self.in_flight:
            self.in_flight[0].go_on_after(record, result)
        return updates

    def paused(self, seconds: float) -> None:
        """Note for how long the workers idled for lack of the oldest plan in flight, and of its answer."""
        if self.in_flight:
            self._observe(WorkersIdled(seconds, len(self.in_flight[0].entries)))

    def fail_step(self, step_id: int) -> list[Sequence]:
        """End the sequences of the oldest plan in flight, which the workers could not run, and return them.

        The pages that the plan should have written may be shared already, so the cache is dropped and all other
        sequences are computed again; the result of the next plan is ignored when it comes. [] when the plan is not in
        flight.
        """
        if not self.in_flight or self.in_flight[0].step_id != step_id:
            return []
        failed, *later = self.in_flight
        self.reset_workers()
        self.in_flight.extend(InFlight(record.step_id, void=True, tiles=record.tiles) for record in later)
        ended = [seq for seq in failed.ends if seq.state is not SequenceState.FINISHED]
        self._end(ended)
        return ended

    def workers_died(self) -> Finding:
        """Begin again with new workers, but without the sequence that has been found to kill them, which has ended.

        Where several may be the one, some are held back for a while.
        """
        held_before = self.held
        finding = self._suspects.died(self.in_flight)
        entries = [entry for record in self.in_flight for entry in record.entries]
        drafted = [each.seq for each in entries if each.drafts and each.seq.state is not SequenceState.FINISHED]
        self._observe(WorkersDied(drafted))
        if self.disk is not None:
            self.disk.workers_died()
        self.reset_workers()
        if finding.convicted is not None:
            self._end([finding.convicted])
        self.live.let_in(held_before)
        for seq in self.held:
            self.waiting.take_out(seq)
        return finding

    def reset_workers(self) -> None:
        """Begin again with workers that hold nothing: KV and plans in flight are gone, every sequence resumes from its
        tokens."""
        self.in_flight.clear()
        ran = set(self.running)
        for seq in list(self.running):
            self.running_set.suspend(seq)
        for seq in self.waiting:  # also the sequences that were set aside
            seq.position.suspended(plans_lost=True, ran=seq in ran)
        self.kv.flush()
        self.features.flush()

    def flush_cache(self) -> bool:
        """Drop all cached prefixes; False, and nothing done, while a sequence runs."""
        if self.running:
            return False
        self.kv.flush()
        if self.disk is not None:
            self.disk.flush()
        return True

    def plans_with(self, adapter: Adapter) -> bool:
        """Return whether a plan in flight has a sequence of the adapter."""
        return any(entry.seq.request.adapter is adapter for record in self.in_flight for entry in record.entries)

    def stats(self) -> SchedulerStats:
        """Return counters for /metrics."""
        free, cached = self.kv.allocator.num_free, self.kv.tree.num_evictable
        return SchedulerStats(
            pages_free=free,
            pages_cached=cached,
            pages_active=self.config.capacity.num_pages - free - cached,
            running=len(self.running),
            waiting=len(self.waiting) + len(self.waiting.aside) + len(self.held),
            prefix_query_tokens=self.kv.query_tokens,
            prefix_hit_tokens=self.kv.hit_tokens,
            retractions=self.running_set.retractions,
        )

    def snapshot_stats(self) -> SnapshotStats | None:
        """Return counters of snapshots for /metrics; None without snapshots."""
        return self.kv.snapshot_stats(self.running)

    def _waits_for_drafts(self) -> bool:
        """Return whether the next plan is to be made after the answer to the last one."""
        if self._speculation is None:
            return False
        awaited = None
        if self.in_flight:
            last = self.in_flight[-1]
            awaited = last.awaited(self.step_costs.expected(last) or 0.0 if last.drafts else 0.0)
        rows = min(self.step_size.tokens, self.config.capacity.max_logit_rows) - len(self.running)
        proposal = self._speculation.propose(self.running, DraftBudget(rows, opens=True, awaited=awaited))
        self.unchecked += proposal.unchecked
        return proposal.waits

    def _observe(self, report: Report) -> None:
        if self._speculation is not None:
            self._speculation.observe(report)

    def _end(self, sequences: list[Sequence]) -> None:
        for seq in sequences:
            self.live.end(seq)
        self._observe(SequencesEnded(sequences))
