"""Defects in scheduler, engine and supervisor."""

from collections.abc import Callable
from typing import Any

from msgspec import structs
from numaserve.server.common.death import Cause, Death
from numaserve.server.engine.admission.backlog import Backlog
from numaserve.server.engine.masks.masked_sequence import MaskedSequence
from numaserve.server.engine.masks.masks import Masks
from numaserve.server.engine.requests.registry import LiveRequests
from numaserve.server.engine.requests.stream import Stream
from numaserve.server.engine.steps.loop import StepLoop
from numaserve.server.scheduler.answers import Answers
from numaserve.server.scheduler.cache.radix_tree import Node, RadixTree
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.server.scheduler.planner import Planner
from numaserve.server.scheduler.policy import StepBudget
from numaserve.server.scheduler.queue.levels import Levels
from numaserve.server.scheduler.queue.queue import WaitingQueue
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence, SequenceState, SequenceUpdate
from numaserve.server.scheduler.step import Entry, InFlight, StepBuilder
from numaserve.server.scheduler.suspects import Suspects
from numaserve.server.supervisor.policy import RestartPolicy
from numaserve.server.supervisor.supervisor import Supervisor
from numaserve.workers.interface.protocol import SeqResult, StepResult

from tests.simulation.defects.registry import defect


@defect(KVCache, "release")
def a_page_is_left_out_of_a_release(right: Callable[..., None], cache: KVCache, seq: Sequence) -> None:
    """The last page of a sequence of more than two is not freed."""
    if len(seq.pages) > 2 and seq.position.computed < len(seq.pages) * cache._config.page_size:
        seq.pages.pop()
    right(cache, seq)


@defect(RadixTree, "match_prefix", first_seed=58)
def a_cache_group_finds_the_pages_of_all(
    right: Callable[..., Node], tree: RadixTree, scope: CacheScope, *arguments: Any
) -> Node:
    """Only the salt of a scope counts."""
    return right(tree, scope._replace(group=""), *arguments)


@defect(KVCache, "publish", first_seed=167)
def pages_are_shared_before_they_are_computed(right: Callable[..., None], cache: KVCache, seq: Sequence) -> None:
    """Others find the pages of a prompt in the very plan that writes them."""
    right(cache, seq)
    cache._fresh.clear()


@defect(StepBuilder, "add", first_seed=40)
def a_sequence_resumes_without_its_penalties(right: Callable[..., None], step: StepBuilder, *arguments: Any) -> None:
    """What it had said before it was retracted does not count."""
    *others, init = arguments
    right(step, *others, None if init is None else structs.replace(init, output_history=[]))


@defect(Scheduler, "reset_workers", first_seed=40)
def log_probabilities_of_a_prompt_come_again(right: Callable[..., None], scheduler: Scheduler) -> None:
    """New workers are asked for rows that have been delivered."""
    right(scheduler)
    for seq in scheduler.waiting:
        seq.position.logprob_rows_planned = seq.position.logprob_rows_received = 0


@defect(WaitingQueue, "leave")
def a_client_is_forgotten_too_early(right: Callable[..., None], queue: WaitingQueue, seq: Sequence) -> None:
    """The others of its sequences have no queue any more."""
    queue._shares[seq.request.client.name].live = 1
    right(queue, seq)


@defect(Levels, "grown")
def later_pages_are_nobody_s(_right: Callable[..., None], _levels: Levels, _seq: Sequence, _pages: int) -> None:
    """A client is taken to hold what its sequences had when they began."""


@defect(Suspects, "next_on_trial")
def who_was_held_back_stays_so(_right: Callable[..., Any], _suspects: Suspects) -> list[Sequence]:
    """Nobody looks at them again when those on trial were cleared."""
    return []


@defect(Suspects, "died")
def suspects_are_not_divided(right: Callable[..., Any], suspects: Suspects, plans: Any) -> Any:
    """All of them are tried together again and again."""
    finding = right(suspects, plans)
    suspects._held.clear()
    return finding


@defect(Suspects, "forget")
def suspects_that_have_ended_are_kept(_right: Callable[..., None], suspects: Suspects, seq: Sequence) -> None:
    """Their requests stay in memory until the next death."""
    suspects._answered.pop(seq, None)


@defect(Scheduler, "apply", first_seed=20)
def a_result_for_a_finished_sequence_is_applied(
    _right: Callable[..., Any], scheduler: Scheduler, result: StepResult
) -> list[SequenceUpdate]:
    """Its client may have left while the step was computed."""
    scheduler.in_flight[0].check(result)
    record = scheduler.in_flight.popleft()
    updates = [scheduler._answers.apply(*each) for each in zip(record.entries, result.seqs, strict=False)]
    return [update for each in updates for update in each]


@defect(Answers, "apply")
def what_rests_on_wrong_draft_tokens_counts_as_computed(
    right: Callable[..., list[SequenceUpdate]], answers: Answers, entry: Entry, answer: SeqResult
) -> list[SequenceUpdate]:
    """The next step goes on behind it."""
    updates = right(answers, entry, answer)
    if entry.drafts and entry.seq.state is SequenceState.RUNNING:
        entry.seq.position.computed = min(entry.end, len(entry.seq.tokens) + 1)
    return updates


@defect(Answers, "apply", first_seed=20)
def the_draft_model_counts_as_having_read_wrong_draft_tokens(
    right: Callable[..., list[SequenceUpdate]], answers: Answers, entry: Entry, answer: SeqResult
) -> list[SequenceUpdate]:
    """Let the workers' drafter skip tokens, so that its draft tokens after them are wrong."""
    updates = right(answers, entry, answer)
    if entry.by_workers and entry.seq.state is SequenceState.RUNNING:
        entry.seq.position.drafter_read = len(entry.seq.tokens) - 1
    return updates


@defect(StepBudget, "beyond")
def draft_tokens_take_the_rows_of_others(_right: Callable[..., int], budget: StepBudget, _sequences: int) -> int:
    """Sequences that come behind find none."""
    return budget._rows


@defect(Scheduler, "fail_step", first_seed=170)
def the_plan_behind_a_failed_one_counts(
    right: Callable[..., list[Sequence]], scheduler: Scheduler, step_id: int
) -> list[Sequence]:
    """Its result is applied, though it was computed from what the failed one has not written."""
    later = list(scheduler.in_flight)[1:]
    ended = right(scheduler, step_id)
    scheduler.in_flight.clear()
    scheduler.in_flight.extend(later)
    return ended


@defect(Planner, "_cohort")
def stages_continue_what_the_last_one_has_not_sampled(
    _right: Callable[..., list[Sequence]], _planner: Planner, ranked: list[Sequence]
) -> list[Sequence]:
    """A sequence is planned ahead of its sample, as without stages."""
    return list(ranked)


@defect(StepLoop, "halt")
def plans_of_dead_workers_stay_in_flight(_right: Callable[..., None], steps: StepLoop) -> None:
    """The step loop goes on waiting for their answers."""
    steps._running = False
    steps._watch.stop()


@defect(StepLoop, "start")
def a_restart_wakes_nobody(_right: Callable[..., None], steps: StepLoop) -> None:
    """What waited for the new workers goes on waiting until somebody else comes."""
    steps._running = True


@defect(MaskedSequence, "publish_known", first_seed=60)
def a_mask_is_given_to_any_position(_right: Callable[..., None], held: MaskedSequence) -> None:
    """A row that awaits the mask of a later token gets the one that is there."""
    if held.state is not None:
        for row in held.rows:
            row.publish(held.state, held.memory)
        held.rows.clear()


@defect(Backlog, "ended")
def who_leaves_the_queue_is_still_in_it(
    right: Callable[..., None], backlog: Backlog, sequence: Sequence, now: float
) -> None:
    """His work counts for ever where none of it was begun."""
    if sequence.cached_tokens is not None:
        right(backlog, sequence, now)


@defect(Masks, "reset", first_seed=250)
def rows_of_dead_workers_are_kept(_right: Callable[..., None], _masks: Masks) -> None:
    """Masks are published for workers that are gone."""


@defect(Masks, "reset", first_seed=299)
def matchers_begin_again(right: Callable[..., None], masks: Masks) -> None:
    """New workers go on where the old ones were, and the matcher with the first token."""
    right(masks)
    for held in masks._held.values():
        held.matcher = None


@defect(LiveRequests, "_remove")
def a_request_is_removed_without_its_sequence(right: Callable[..., None], requests: LiveRequests, live: Any) -> None:
    """A client that leaves while its sequence waits is forgotten, and the sequence is computed for nobody."""
    if live.sequence.state is SequenceState.WAITING:
        del requests._live[live.sequence.request_id]
        return
    right(requests, live)


@defect(Stream, "push")
def an_end_is_told_twice(right: Callable[..., None], stream: Stream, chunk: Any) -> None:
    """The last chunk comes again, without its text."""
    right(stream, chunk)
    if chunk.finish_reason is not None and stream._running:
        right(stream, chunk)


@defect(RestartPolicy, "failed", first_seed=2905)
def failures_before_an_answer_are_not_forgiven(
    right: Callable[..., bool], policy: RestartPolicy, now: float, *, was_ready: bool, cause: Cause = Cause.UNKNOWN
) -> bool:
    """Workers that serve between starts that fail are given up."""
    return right(policy, now, was_ready=was_ready, cause=Cause.REQUEST if cause is Cause.PASSING else cause)


@defect(Supervisor, "_on_failure", first_seed=135)
def who_dies_as_he_is_ready_is_taken_to_serve(right: Callable[..., None], supervisor: Supervisor, death: Death) -> None:
    """His end is known before his beginning."""
    supervisor._starting = False
    right(supervisor, death)


@defect(Supervisor, "_end_group")
async def a_group_is_started_before_the_old_one_has_ended(
    right: Callable[..., Any], supervisor: Supervisor, grace_s: float = 0.0
) -> None:
    """The old processes still hold their memory."""
    if supervisor._stopped or supervisor._group is None:
        await right(supervisor, grace_s)
        return
    supervisor._group = None


@defect(InFlight, "take_back", first_seed=68)
def what_rests_on_a_sample_that_was_taken_back_counts(
    right: Callable[..., None], record: InFlight, seq: Sequence
) -> None:
    """The plan in flight goes on as if the token that stands for the late one were the sequence's."""


@defect(Scheduler, "mask_known", first_seed=68)
def nobody_goes_on_whose_mask_was_late(right: Callable[..., None], scheduler: Scheduler, seq: Sequence) -> None:
    """The sequence waits for a mask that is there."""
