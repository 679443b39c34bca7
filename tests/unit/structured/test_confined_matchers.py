"""A matcher in a process of its own allows what one here does, whatever becomes of that process."""

import ctypes
import json
import os
import random
import signal
from collections.abc import Iterator

import pytest
from llguidance import LLTokenizer
from numaserve.server.scheduler.matcher import ConstraintFailed
from numaserve.server.structured.matchers.confined_matcher import ConfinedMatcher, MatcherProcesses
from numaserve.server.structured.matchers.matcher import GrammarMatcher, mask_bytes
from numaserve.server.structured.matchers.movable_matcher import MovableMatcher
from numaserve.server.structured.parser_limits import new_matcher
from numaserve.server.structured.translate import to_llguidance
from numaserve.server.structured.trial.trial import Trial
from numaserve.server.structured.types import Constraint, Limits, UnsupportedGrammar
from numaserve.server.structured.vocabulary import Vocabulary

AMBIGUOUS = Constraint("lark", 'start: s\ns: s s s s | "" | "a" s | s "b"\n')
OBJECT = Constraint("json_schema", json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}}))


@pytest.fixture(scope="module")
def processes(vocabulary: Vocabulary) -> Iterator[MatcherProcesses]:
    made = MatcherProcesses(vocabulary)
    yield made
    made.close()


def grammar_of(constraint: Constraint, vocabulary: Vocabulary) -> str:
    return to_llguidance(constraint, vocabulary.special, Limits())


def mask_of(matcher: GrammarMatcher | ConfinedMatcher | MovableMatcher, vocabulary: Vocabulary) -> bytes:
    bits = ctypes.create_string_buffer(mask_bytes(vocabulary.size))
    matcher.write_mask(ctypes.addressof(bits), len(bits))
    return bits.raw


def a_token(mask: bytes, rng: random.Random) -> int:
    return rng.choice([token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1])


@pytest.mark.parametrize("constraint", [AMBIGUOUS, OBJECT])
@pytest.mark.parametrize("moves_at", [0, 1, 7])
def test_the_masks_are_those_that_a_matcher_here_makes(
    processes: MatcherProcesses, vocabulary: Vocabulary, loaded: LLTokenizer, constraint: Constraint, moves_at: int
) -> None:
    grammar, eos = grammar_of(constraint, vocabulary), frozenset(vocabulary.eos)
    local = GrammarMatcher(new_matcher(loaded, grammar), vocabulary.size, eos)
    movable = MovableMatcher(
        GrammarMatcher(new_matcher(loaded, grammar), vocabulary.size, eos),
        lambda tokens: ConfinedMatcher(processes, grammar, tokens),
    )
    rng = random.Random(moves_at)
    for step in range(12):
        if step == moves_at:
            movable.confine()
        assert movable.is_confined == (step >= moves_at)
        mask = mask_of(local, vocabulary)
        assert mask_of(movable, vocabulary) == mask
        token = a_token(mask, rng)
        local.accept(token)
        movable.accept(token)


def test_more_matchers_than_a_process_keeps_go_on_all_the_same(
    processes: MatcherProcesses, vocabulary: Vocabulary
) -> None:
    grammar = grammar_of(OBJECT, vocabulary)
    many = [ConfinedMatcher(processes, grammar, ()) for _ in range(70)]
    first = {mask_of(each, vocabulary) for each in many}
    assert len(first) == 1
    token = a_token(first.pop(), random.Random(0))
    for each in many:
        each.accept(token)
    assert len({mask_of(each, vocabulary) for each in many}) == 1


def test_a_process_that_was_killed_is_begun_again_where_the_answer_is(
    processes: MatcherProcesses, vocabulary: Vocabulary
) -> None:
    grammar, rng = grammar_of(AMBIGUOUS, vocabulary), random.Random(1)
    subject, other = (ConfinedMatcher(processes, grammar, ()) for _ in range(2))
    for _ in range(5):
        mask = mask_of(subject, vocabulary)
        assert mask_of(other, vocabulary) == mask
        token = a_token(mask, rng)
        subject.accept(token)
        other.accept(token)
        for worker in processes._workers:
            if worker is not None:
                os.kill(worker._process.pid, signal.SIGKILL)


def test_a_token_that_is_not_allowed_ends_the_answer(processes: MatcherProcesses, vocabulary: Vocabulary) -> None:
    subject = ConfinedMatcher(processes, grammar_of(OBJECT, vocabulary), ())
    mask = mask_of(subject, vocabulary)
    subject.accept(next(token for token in range(vocabulary.size) if not mask[token // 8] >> token % 8 & 1))
    with pytest.raises(ConstraintFailed, match="allows no continuation of the output"):
        mask_of(subject, vocabulary)


def test_work_has_the_idle_priority(processes: MatcherProcesses, vocabulary: Vocabulary) -> None:
    mask_of(ConfinedMatcher(processes, grammar_of(OBJECT, vocabulary), ()), vocabulary)
    running = [worker for worker in processes._workers if worker is not None]
    assert running
    assert all(os.sched_getscheduler(worker._process.pid) == os.SCHED_IDLE for worker in running)


def test_nothing_is_begun_after_the_end(vocabulary: Vocabulary) -> None:
    processes = MatcherProcesses(vocabulary)
    processes.close()
    with pytest.raises(ConstraintFailed, match="shutting down"):
        mask_of(ConfinedMatcher(processes, grammar_of(OBJECT, vocabulary), ()), vocabulary)


def test_a_constraint_whose_first_masks_take_too_long_is_refused(vocabulary: Vocabulary) -> None:
    trial = Trial(vocabulary, Limits(mask_seconds=0.03))
    try:
        with pytest.raises(UnsupportedGrammar, match=r"takes .* s of processor time \(limit 0.03 s\)"):
            trial.run(Constraint("json_schema", json.dumps({"enum": ["x" * 400_000]})))
        assert trial.run(OBJECT).mask_seconds < 0.1
    finally:
        trial.stop()
