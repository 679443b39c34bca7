"""The judge of ranks that owe an answer: what was late, starved or hung between looks a quarter of a second apart."""

from collections.abc import Collection
from dataclasses import replace

import pytest
from numaserve.server.supervisor.cpu_time import ThreadTime
from numaserve.server.supervisor.judge import Judge, RankLook

GAP = 0.25
SLEEPS, STOPPED = ThreadTime("S", 1.0, 1.0), ThreadTime("T", 1.0, 1.0)


def runs(share: float, looks: int) -> ThreadTime:
    """A runnable thread that has run for this share of the time; it waits now, and its wait is not counted yet."""
    return ThreadTime("R", 1.0 + share * looks * GAP, 1.0)


def excused(*looks: dict[int, RankLook]) -> list[float]:
    """The seconds that are excused at each look after the first one."""
    judge = Judge()
    verdicts = [judge.look(100.0 + at * GAP, ranks) for at, ranks in enumerate(looks)]
    assert verdicts[0].excused_s == 0.0
    assert not any(each.progressed for each in verdicts)
    return [each.excused_s for each in verdicts[1:]]


def rank(*threads: ThreadTime, waiting: Collection[int] = ()) -> RankLook:
    return RankLook(7, frozenset(waiting), dict(enumerate(threads)))


def test_a_rank_that_has_passed_a_barrier_progresses_whatever_time_it_had() -> None:
    judge = Judge()
    judge.look(0.0, {0: rank(runs(0, 0)), 1: rank(STOPPED)})
    assert judge.look(GAP, {0: replace(rank(runs(1, 1)), barriers=8), 1: rank(STOPPED)}).progressed


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_time_without_a_processor_is_excused(share: float) -> None:
    assert excused(*({0: rank(runs(share, at))} for at in range(4))) == pytest.approx([(1 - share) * GAP] * 3)


def test_short_waits_of_a_thread_that_sleeps_in_between_are_excused() -> None:
    assert excused({0: rank(SLEEPS)}, {0: rank(SLEEPS._replace(waited_s=1.2))}) == pytest.approx([0.2])
    # It began before the last look, and is excused for the time since then.
    assert excused({0: rank(SLEEPS)}, {0: rank(SLEEPS._replace(waited_s=9.0))}) == pytest.approx([GAP])


@pytest.mark.parametrize("thread", [SLEEPS, STOPPED, ThreadTime("D", 1.0, 1.0)])
def test_a_thread_that_wants_no_processor_is_excused_for_nothing(thread: ThreadTime) -> None:
    assert excused(*[{0: rank(thread)}] * 4) == [0.0] * 3


def test_a_loop_in_a_kernel_is_excused_for_nothing_though_its_team_yields_to_others() -> None:
    looks = ({0: rank(runs(1, at), runs(0.1, at), SLEEPS, waiting=[1])} for at in range(4))
    assert excused(*looks) == [0.0] * 3


def test_a_loop_in_a_kernel_is_excused_for_nothing_though_other_ranks_yield_to_others() -> None:
    looks = ({0: rank(runs(0.1, at), waiting=[0]), 1: rank(runs(1, at))} for at in range(4))
    assert excused(*looks) == [0.0] * 3


def test_a_rank_that_spins_for_a_starved_one_excuses_the_time_of_the_starved_one() -> None:
    looks = ({0: rank(runs(1, at), waiting=[0]), 1: rank(runs(0, at), runs(0.9, at), waiting=[1])} for at in range(3))
    assert excused(*looks) == pytest.approx([GAP] * 2)


def test_a_thread_that_had_no_processor_to_see_the_end_of_its_wait_is_excused() -> None:
    looks = ({0: rank(runs(0, at), runs(0.9, at), SLEEPS, waiting=[0, 1])} for at in range(3))
    assert excused(*looks) == pytest.approx([GAP] * 2)


def test_ranks_that_look_at_a_wait_without_an_end_are_excused_for_nothing() -> None:
    looks = ({0: rank(runs(0.1, at), SLEEPS, waiting=[0]), 1: rank(SLEEPS)} for at in range(4))
    assert excused(*looks) == [0.0] * 3


def test_a_stopped_rank_is_excused_for_nothing_though_the_others_have_no_processor() -> None:
    looks = ({0: rank(runs(0, at), waiting=[0]), 1: rank(STOPPED)} for at in range(4))
    assert excused(*looks) == [0.0] * 3


def test_processor_time_that_is_reported_late_is_excused_for_nothing_in_the_end() -> None:
    looks = [{0: rank(runs(1, at - at % 4))} for at in range(9)]
    assert sum(excused(*looks)) == pytest.approx(0.0)


def test_what_was_starved_before_progress_excuses_nothing_after_it() -> None:
    judge = Judge()
    judge.look(0.0, {0: rank(runs(0, 0))})
    judge.look(GAP, {0: rank(runs(0, 1))})
    assert judge.look(2 * GAP, {0: replace(rank(runs(0, 2)), barriers=8)}).progressed
    hangs = ThreadTime("R", 1.0 + GAP, 1.0)
    assert judge.look(3 * GAP, {0: replace(rank(hangs), barriers=8)}).excused_s == 0.0


def test_looks_before_an_answer_are_forgotten() -> None:
    judge = Judge()
    judge.look(0.0, {0: rank(runs(0, 0))})
    judge.begin()
    assert judge.look(GAP, {0: rank(runs(0, 1))}).excused_s == 0.0


def test_seconds_without_a_processor_are_told_by_rank() -> None:
    judge = Judge()
    judge.look(0.0, {0: rank(runs(0, 0)), 1: rank(SLEEPS), 2: rank(runs(0.2, 0), runs(0, 0), waiting=[1])})
    verdict = judge.look(GAP, {0: rank(runs(0, 1)), 1: rank(SLEEPS), 2: rank(runs(0.2, 1), runs(0, 1), waiting=[1])})
    assert verdict.elapsed_s == GAP
    assert verdict.starved_s == pytest.approx({0: GAP, 1: 0.0, 2: 0.8 * GAP})
