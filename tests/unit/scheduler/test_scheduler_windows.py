"""The pages of layers with windows: who holds them, when they are given back, and that nobody lacks one."""

import pytest
from numaserve.server.scheduler.kv_cache import KVCache
from numaserve.server.scheduler.sequence import SchedulerConfig, Sequence
from numaserve.workers.interface.protocol import SamplingParams, StepPlan
from numaserve.workers.interface.windows import Window, WindowTable
from scheduler_simulation import NAN_TOKEN, Service
from served_alone import own, serve

from tests.support.plan_limits import plan_limits, with_limits
from tests.support.scheduler_integrity import check_integrity
from tests.support.sequences import planned, sequence

PAGE = 4
WINDOW = Window(6)
CONFIG = plan_limits(64, 100, 3, 32, page_size=PAGE, block_pages=2, max_drafts=3)
SHARED = list(range(10, 34))  # six pages


def config(window: Window = WINDOW, spare: int = 12, **limits: int | bool) -> SchedulerConfig:
    """Limits with a window table of `spare` pages more than running sequences need."""
    limited = with_limits(CONFIG, **limits)
    least = window.least_pages(limited.max_running, limited.shared_step_tokens, 3, limited.page_layout)
    return with_limits(limited, [WindowTable(window, least + spare)])


def free(server: Service) -> int:
    stats = server.scheduler.kv.window_stats()
    assert stats is not None
    return stats.free


def step(server: Service) -> StepPlan:
    plan = planned(server)
    server.receive()
    return plan


@pytest.mark.parametrize("window", [WINDOW, Window(5, aligned=True), Window(1), Window(200)], ids=str)
@pytest.mark.parametrize("ahead", [False, True])
def test_a_sequence_of_any_length_needs_the_pages_of_its_window(window: Window, ahead: bool) -> None:
    server = Service(config(window, spare=0, enable_prefix_cache=False), ahead)
    requests = [server.add(own(number, 20 + number), 60) for number in range(1, 4)]
    server.drain()
    assert all(request.is_answered for request in requests)
    assert free(server) == server.config.capacity.window_pages[0]


def test_a_plan_says_what_changes_and_nothing_else() -> None:
    server = Service(config())
    server.add(own(1, 9), 12)
    first, *others = [step(server) for _ in range(9)]
    [work] = first.windows or []
    assert (work.index, work.window, work.first, len(work.pages)) == (0, 0, 0, 3)
    changes = [(9 + n, work.first, len(work.pages)) for n, plan in enumerate(others) for work in plan.windows or []]
    assert changes == [(12, 0, 1), (13, 2, 0), (16, 2, 1)]  # 13 - 6 + 1 is the end of the first block


def test_a_model_without_windows_says_nothing_of_them() -> None:
    server = Service(CONFIG)
    server.add(own(1), 5)
    assert not step(server).windows
    assert server.scheduler.kv.window_stats() is None


def test_pages_before_the_window_are_free_from_the_next_plan_on() -> None:
    server = Service(config())
    all_pages = free(server)
    server.add(own(1, 30), 9)
    step(server)
    assert free(server) == all_pages - 8
    step(server)  # 30 - 6 + 1 is in the fourth block, and the window before the mark at 28 begins in the third
    assert free(server) == all_pages - 2 - 2


def test_an_anchor_holds_its_window_and_shares_it_with_sequences_that_begin_there() -> None:
    server = Service(config())
    all_pages = free(server)
    assert serve(server, SHARED + own(1, 3)) == 0
    held = all_pages - free(server)
    assert held == 2  # positions 16 to 23: those of the window before 24, and its block
    server.add(SHARED + own(2, 3), 1)
    plan = step(server)
    [work] = plan.windows or []
    assert (plan.seqs[0].start, work.first, len(work.pages)) == (24, 4, 3)
    assert free(server) == all_pages - held


def test_the_last_full_page_of_a_sequence_is_found() -> None:
    server = Service(config())
    serve(server, own(1, 9), 12)
    answer = server.requests[0].received
    assert serve(server, [*own(1, 9), *answer, *own(2)]) == 20


def test_an_aborted_prompt_goes_on_where_it_was() -> None:
    server = Service(config(max_step_tokens=16))
    left = server.add(own(1, 60), 9)
    step(server)
    step(server)
    server.end(left, "abort")
    assert serve(server, own(1, 60)) == 32


def test_the_least_recently_used_anchor_gives_its_pages() -> None:
    server = Service(config(spare=0, max_slots=1))
    prompts = [own(number, 25) for number in range(1, 9)]
    assert [serve(server, each) for each in prompts] == [0] * 8
    assert serve(server, prompts[7]) == 24
    assert serve(server, prompts[0]) == 0


def test_an_anchor_that_frees_no_page_is_passed_over() -> None:
    cache = KVCache(config())
    assert cache.anchors is not None and cache.windows is not None
    seq = sequence("1", own(1, 30), SamplingParams(), 1)
    _compute(cache, seq)
    assert len(cache.anchors) == 1  # shares all its pages with the sequence, which runs
    other = sequence("2", own(2, 30), SamplingParams(), 1)
    _compute(cache, other)
    cache.release(other)
    before = set(cache.anchors._of)
    assert cache.anchors.give_up_pages(0)
    [gone] = before - set(cache.anchors._of)
    assert gone.key[0] in other.tokens


def test_marks_that_no_node_has_yet_give_their_pages_last() -> None:
    server = Service(config(spare=0, max_slots=1, max_step_tokens=4))
    serve(server, SHARED)
    anchors = server.scheduler.kv.anchors
    assert anchors is not None
    for node in list(anchors._of):
        anchors.drop(node)
    # Others have its first pages, so that its own pages and its mark join the tree at its end.
    assert serve(server, SHARED + own(1, 15), 30) == 0


@pytest.mark.parametrize("drafter", ["draft_model", "mtp"])
def test_draft_tokens_in_flight_may_all_be_rejected(drafter: str) -> None:
    limits = config(Window(3), worker_drafter=drafter, page_size=1, block_pages=1, num_pages=300)
    server = Service(limits, ahead=True)
    requests = [server.add(own(number), 80) for number in (1, 2)]
    server.drain()
    assert all(request.is_answered for request in requests)
    assert sum(server.scheduler.drafted.values()) > 0


def test_the_window_before_a_token_that_is_not_known_is_not_left() -> None:
    server = Service(config(), ahead=True)
    left = server.add(SHARED[:5], 9)
    server.schedule()
    for _ in range(2):
        server.schedule()
        server.receive()
    server.schedule()  # ends the second page, with a token that is not known
    server.end(left, "abort")
    server.drain()
    requests = [server.add([*left.tokens[:4], *own(number)], 9) for number in (1, 2)]  # they write after the same page
    server.drain()
    assert all(request.is_answered for request in requests)
    assert server.scheduler.kv.hit_tokens == 8


def test_window_pages_of_a_sequence_without_numbers_are_found_by_nobody() -> None:
    server = Service(config())
    spoiled = [*SHARED, NAN_TOKEN, *own(2)]
    assert serve(server, spoiled) == 0
    assert serve(server, spoiled) == 0
    assert serve(server, SHARED + own(3)) == 0


def test_nothing_is_held_after_a_death() -> None:
    server = Service(config(), ahead=True)
    requests = [server.add(SHARED + own(number), 20) for number in (1, 2, 3)]
    for _ in range(8):
        step(server)
    server.restart_workers()
    check_integrity(server.scheduler)
    assert free(server) == server.config.capacity.window_pages[0]
    server.drain()
    assert all(request.is_answered for request in requests)


def test_a_table_with_too_few_pages_is_refused() -> None:
    least = config(spare=0)
    [table] = least.window_tables
    with pytest.raises(
        ValueError, match=rf"window 6 needs at least {table.num_pages} pages, not {table.num_pages - 1}"
    ):
        with_limits(least, [WindowTable(WINDOW, table.num_pages - 1)])


def test_states_and_windows_go_together() -> None:
    server = Service(config(num_snapshots=8), drafts=True)
    prompts = [SHARED + own(number) for number in (1, 2, 3)]
    assert [serve(server, each, 9) for each in prompts] == [0, 0, 24]


def _compute(cache: KVCache, seq: Sequence) -> None:
    """Plan the whole prompt of a sequence that is admitted."""
    cache.begin_step([])
    assert cache.admit(seq, 0)
    assert cache.windows is not None
    cache.windows.plan(seq, len(seq.tokens), 0, begins=True)
    cache.state_work(seq, len(seq.tokens), 0)
    seq.position.planned(len(seq.tokens), 0, len(seq.tokens))
    cache.publish(seq)
