"""Prompts with images: runs of the tower, places of features, and what they do to others."""

import pytest
from image_prompts import CAT, DOG, PAGE, ROWS, ask, learnt, prompt, runs, seconds, service, steps
from msgspec import UNSET
from numaserve.server.scheduler.cache.kv_events import KVEventLog, PagesStored
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.images import PlacedTile, Tile, keys_of
from numaserve.server.scheduler.sequence import ECONOMICAL_STEP_S
from numaserve.workers.interface.protocol import PlacedRows, TowerWork
from scheduler_simulation import NAN_TOKEN, RUN_NS, Service, step_ns

from tests.support.scheduler_integrity import check_integrity
from tests.support.sequences import planned


def test_a_tile_is_run_once_and_its_rows_are_placed_by_each_chunk() -> None:
    server = service(max_step_tokens=8)
    ask(server, 5, "cat", 1)
    plans = list(steps(server))
    assert [plan.tower for plan in plans] == [[TowerWork(0, 0, rows=1, cols=ROWS)], UNSET, UNSET]
    assert [plan.placed for plan in plans] == [[PlacedRows(0, 5, 3, 0)], [PlacedRows(0, 8, 3, 3)], UNSET]
    assert (server.scheduler.features.hits, server.scheduler.features.runs) == (0, 1)


def test_a_prompt_of_text_says_nothing_of_images() -> None:
    server = service()
    ask(server, 30)
    assert all(plan.tower is plan.placed is UNSET for plan in steps(server))


def test_an_image_is_found_again_within_its_scope() -> None:
    server = service(tiles=2, enable_prefix_cache=False)
    ask(server, 3, "cat", 2)
    assert [runs(plan) for plan in steps(server)] == [1, 0]
    ask(server, 9, "cat", "cat", 2)
    assert [runs(plan) for plan in steps(server)] == [0, 0]
    ask(server, 3, "cat", 2, client=Client("other", cache_group="team"))
    assert [runs(plan) for plan in steps(server)] == [1, 0]
    assert (server.scheduler.features.hits, server.scheduler.features.runs) == (2, 2)


def test_two_prompts_of_a_plan_share_a_run() -> None:
    server = service()
    for text in (3, 4):
        ask(server, text, "cat", 2)
    assert [runs(plan) for plan in steps(server)] == [1, 0]


def test_an_image_whose_positions_are_cached_needs_no_run() -> None:
    server = service(tiles=1)
    for picture in ("cat", "dog"):  # which takes the place of the cat
        ask(server, 2, picture, 5)
        assert [runs(plan) for plan in steps(server)] == [1, 0]
    ask(server, 2, "cat", 5)
    assert [runs(plan) for plan in steps(server)] == [0, 0]


def test_a_chunk_ends_before_a_tile_without_a_place() -> None:
    server = service(tiles=1)
    ask(server, 3, "cat", 4, "dog", 1)
    lengths = [plan.seqs[0].num_tokens for plan in steps(server)]
    assert lengths == [3 + ROWS + 4, ROWS + 1, 1]


@pytest.mark.parametrize("ahead", [False, True])
def test_one_place_is_enough_for_many_requests_of_many_tiles(ahead: bool) -> None:
    server = service(tiles=1, ahead=ahead, max_step_tokens=16, num_pages=40)
    asked = [ask(server, text % 3, "cat", "dog", "bird", text) for text in range(8)]
    server.drain()
    assert all(request.ends == ["length"] for request in asked)


def test_a_place_that_a_plan_in_flight_reads_is_not_given_to_another_tile() -> None:
    server = service(tiles=1, ahead=True)
    ask(server, "cat", 1, output=8)
    ask(server, "dog", 1)
    assert server.schedule() is not None
    later = planned(server)
    assert later.tower is UNSET
    server.drain()


def test_a_prompt_that_ends_with_an_image_waits_for_a_place_with_its_last_position() -> None:
    """A single position that is left looks like that of an output token."""
    server = service(tiles=1, max_step_tokens=ROWS - 1)
    other = ask(server, "cat", output=1)
    mine = ask(server, "dog", output=4)
    plans = list(steps(server))
    assert sum(runs(plan) for plan in plans) >= 2
    assert other.ends == mine.ends == ["length"]


def test_a_failed_step_and_the_void_plan_after_it_leave_no_features_and_keep_their_pixels() -> None:
    server = learnt(service(tiles=4, ahead=True, max_step_tokens=20))
    ask(server, "cat", "dog", "bird", 9)
    first, later = server.schedule(), server.schedule()
    assert first is not None
    assert later is not None
    assert (runs(first), runs(later)) == (3, 0)
    ask(server, "dog", "cat", 1)
    server.fail_step()
    check_integrity(server.scheduler)
    server.drain()  # the simulated workers check that no row is taken before it is made again


def test_tiles_of_a_void_plan_live_until_it_is_answered() -> None:
    server = service(tiles=4, ahead=True, max_step_tokens=9)
    leaver = ask(server, "cat", 3, "dog", 9)
    first, later = server.schedule(), server.schedule()
    assert first is not None
    assert later is not None
    assert runs(later) == 1
    server.fail_step()
    assert leaver.ends == ["error"]
    assert list(server.store.contents.values()) == [leaver.tiles[ROWS + 3]]
    server.receive()
    assert not server.store.contents


def test_the_pixels_of_a_client_that_leaves_live_until_the_plan_is_answered() -> None:
    server = service()
    request = ask(server, "cat", 3)
    server.schedule()
    server.end(request, "abort")
    assert server.store.contents
    server.receive()
    assert server.schedule() is None
    assert not server.store.contents


def test_new_workers_run_the_tower_again_and_the_answer_goes_on() -> None:
    server = service(enable_prefix_cache=False)
    request = ask(server, 3, "cat", 2, output=6)
    for _ in range(3):
        server.schedule()
        server.receive()
    server.restart_workers()
    assert next(runs(plan) for plan in steps(server)) == 1
    server.drain()
    assert request.ends == ["length"]


def test_the_sequence_whose_tile_kills_the_workers_is_convicted() -> None:
    server = service(enable_prefix_cache=False)
    deadly = ask(server, 3, "bird", 2)
    others = [ask(server, 3, "cat", text) for text in range(1, 5)]
    deaths = 0
    while not server.nobody_left:
        plan = planned(server)
        if any(server.store.contents[work.tile] == deadly.tiles[3] for work in plan.tower or []):
            deaths += 1
            server.restart_workers()
        else:
            server.receive()
    assert deadly.ends == ["convicted"]
    assert deaths <= 5  # ceil(log2(5)) + 2
    assert all(other.ends == ["length"] for other in others)


def test_the_features_of_a_sequence_without_numbers_are_made_again() -> None:
    server = service(enable_prefix_cache=False)
    tokens, pictures = prompt(3, "cat", 1)
    request = server.add([*tokens, NAN_TOKEN], 2, pictures=pictures)
    assert [runs(plan) for plan in steps(server)] == [1]
    assert request.ends == ["nan"]
    ask(server, 3, "cat", 1)
    assert [runs(plan) for plan in steps(server)] == [1, 0]


def test_runs_next_to_output_tokens_fit_into_the_seconds_of_a_step() -> None:
    target_s = 0.006  # of eight runs, or of fifty tokens
    server = learnt(service(tiles=40, max_step_tokens=256, target_itl_s=target_s, enable_prefix_cache=False), streams=2)
    request = ask(server, *["cat", "dog", "bird"] * 6, 9)
    plans = []
    while not request.received:
        plans.append(server.schedule())
        server.receive()
    taken = [seconds(plan) for plan in plans if plan is not None and plan.placed]
    assert len(taken) > 2
    assert max(taken) < target_s * 1.05
    assert sum(runs(plan) for plan in plans if plan is not None) == 3


def test_runs_that_never_fit_are_planned_one_at_a_time() -> None:
    server = learnt(service(tiles=40, target_itl_s=1e-6, enable_prefix_cache=False), streams=2)
    request = ask(server, "cat", 1, "dog", "bird", 3)
    per_step = []
    while not request.received:
        plan = planned(server)
        per_step.append(runs(plan))
        server.receive()
    assert max(per_step) == 1
    assert sum(per_step) == 3


def test_a_step_without_output_tokens_takes_no_longer_for_its_runs_than_newcomers_may_wait() -> None:
    server = learnt(service(tiles=40, enable_prefix_cache=False))
    costs = server.scheduler.step_costs
    assert costs.tower is not None
    costs.tower._rates = [rate * ECONOMICAL_STEP_S / 2.5 / (RUN_NS * 1e-9) for rate in costs.tower._rates]
    ask(server, "cat", 1, "dog", "bird", 3)
    assert [runs(plan) for plan in steps(server)][:2] == [2, 1]


def test_as_long_as_no_run_was_observed_a_step_has_one() -> None:
    server = service()
    ask(server, "cat", "dog", "bird")
    assert [runs(plan) for plan in steps(server)][:2] == [1, 2]


def test_a_run_that_does_not_fit_waits_until_it_is_first_and_text_goes_on() -> None:
    server = learnt(service(tiles=40, target_itl_s=0.0025, enable_prefix_cache=False), streams=1)
    text = ask(server, 8, client=Client("text"))
    image = ask(server, "cat", 1, client=Client("image"))
    plan = planned(server)
    assert runs(plan) == 0
    server.receive()
    assert text.received
    plan = planned(server)
    assert runs(plan) == 1
    server.drain()
    assert image.ends == ["length"]


def test_runs_count_as_tokens_of_their_client() -> None:
    """The client with images has had its turn with one tile, which takes as long as several tokens."""
    server = learnt(service(tiles=40, max_step_tokens=16, enable_prefix_cache=False))
    counted: list[float] = []
    waiting = server.scheduler.waiting
    right = waiting.computed
    waiting.computed = lambda seq, tokens: (counted.append(tokens), right(seq, tokens))[1]  # type: ignore[method-assign]
    ask(server, "cat", 2)
    server.drain()
    of_run = server.scheduler.step_costs.of_run(16)
    assert of_run.seconds == pytest.approx(RUN_NS * 1e-9, rel=0.1)
    assert counted == [pytest.approx(ROWS + 2 + of_run.tokens, rel=0.2)]
    assert of_run.tokens > 3


def test_what_a_step_takes_is_learnt_without_its_runs_and_deadlines_know_of_both() -> None:
    server = service(enable_prefix_cache=False, max_step_tokens=16)
    for text in range(20):
        ask(server, "cat" if text % 2 else "dog", text)
        server.drain()
        server.scheduler.features.flush()
    ask(server, "bird", 5)
    plan = planned(server)
    record = server.scheduler.in_flight[0]
    expected = server.scheduler.step_costs.expected(record)
    without = server.scheduler.step_costs.served.expected(record.terms)
    assert expected is not None
    assert without is not None
    assert expected - without == pytest.approx(RUN_NS * 1e-9, rel=0.1)
    assert without == pytest.approx(step_ns(plan) * 1e-9, rel=0.1)


def test_events_have_the_placeholders_of_images_as_tokens() -> None:
    log = KVEventLog("model")
    server = service(log=log)
    ask(server, 2, "cat", 2)
    server.drain()
    ask(server, 2, "dog", 2)
    server.drain()
    stored = [event for event in log.take() if isinstance(event, PagesStored)]
    tokens, _ = prompt(2, "cat", 2)
    assert [event.tokens[: 2 * PAGE] for event in stored] == [tokens[: 2 * PAGE]] * 2
    assert len({digest for event in stored for digest in event.digests}) == sum(len(each.digests) for each in stored)


def test_events_name_the_images_of_each_page_and_where_they_begin() -> None:
    log = KVEventLog("model")
    server = service(log=log)
    ask(server, 2, "cat", "dog", 4)  # 6 positions each, in pages of 4
    server.drain()
    [stored] = [event for event in log.take() if isinstance(event, PagesStored)]
    cat, dog = ((bytes([picture]) * 32).hex() for picture in (CAT, DOG))
    expected = [[(cat, 2)], [(cat, -2)], [(dog, 0)], [(dog, -4)]]
    assert [list(stored.contents.get(digest, ())) for digest in stored.digests[:4]] == expected
    assert not stored.contents.keys() - stored.digests[:4]


def test_keys_are_digests_and_rows_where_tiles_are() -> None:
    cat, dog = Tile(0, b"c" * 32, 1, 2), Tile(1, b"d" * 32, 1, 2)
    keys = keys_of([5, 0, 0, 0, 0, 7], [PlacedTile(1, cat), PlacedTile(3, dog)], 2)
    assert keys == [5, b"c" * 32 + b"\0\0", b"c" * 32 + b"\0\1", b"d" * 32 + b"\0\0", b"d" * 32 + b"\0\1", 7]


@pytest.mark.parametrize("starts", [[5], [-1], [1, 2], [3, 1]])
def test_tiles_outside_of_the_prompt_or_of_their_order_are_refused(starts: list[int]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        keys_of([0] * 6, [PlacedTile(start, Tile(0, b"", 1, 2)) for start in starts], 2)


def test_images_are_refused_by_a_model_that_reads_none() -> None:
    with pytest.raises(ValueError, match="the model reads none"):
        ask(service(tiles=0), "cat", 1)


def whole_images(**limits: object) -> Service:
    """A service whose model computes the rows of an image in one step."""
    return service(whole_images=True, **limits)


def test_a_chunk_ends_before_an_image_that_must_be_whole() -> None:
    server = whole_images(max_step_tokens=ROWS + 2, tiles=3)
    ask(server, 5, "cat", 1, "dog", "bird", 2)
    plans = list(steps(server))
    assert [plan.seqs[0].num_tokens for plan in plans[:4]] == [5, ROWS + 1, ROWS, ROWS + 2]
    assert {placed.count for plan in plans for placed in plan.placed or []} == {ROWS}


def test_an_image_that_must_be_whole_waits_for_a_step_with_space_for_it() -> None:
    server = learnt(whole_images(max_step_tokens=ROWS + 2, max_slots=4, target_itl_s=1e-6), streams=2)
    text = ask(server, 30)
    image = ask(server, 3, "cat", 1, "dog")
    plans = list(steps(server))
    assert text.ends == image.ends == ["length"]
    assert {placed.count for plan in plans for placed in plan.placed or []} == {ROWS}


def test_no_sequence_goes_on_within_an_image_that_must_be_whole() -> None:
    server = whole_images(max_step_tokens=64)
    ask(server, 3, "cat", 20)  # whose rows end in the third page of 4
    server.drain()
    other = ask(server, 3, "cat", 1)
    plan = planned(server)
    assert (plan.seqs[0].start, plan.seqs[0].num_tokens) == (0, 3 + ROWS + 1)
    server.drain()
    again = ask(server, 3, "cat", 20)
    assert planned(server).seqs[0].start >= PAGE * 3
    server.drain()
    assert other.ends == again.ends == ["length"]


def test_a_step_that_takes_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match="takes no image of 6 rows"):
        whole_images(max_step_tokens=ROWS)
