"""Defects in the features of images: their places, their scope, and the pixels that they are made of."""

from collections.abc import Callable
from typing import Any

from msgspec import structs
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE
from numaserve.server.scheduler.feature_pool import BegunRun, FeatureKey, FeaturePool
from numaserve.server.scheduler.planner import Planner
from numaserve.server.scheduler.position import Position
from numaserve.server.scheduler.running_set import RunningSet
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.step import StepBuilder
from numaserve.server.scheduler.tower_runs import Ahead, TowerRuns
from numaserve.workers.interface.protocol import StepPlan

from tests.simulation.defects.registry import defect


@defect(StepBuilder, "finish", first_seed=22)
def places_are_unlocked_as_a_plan_is_sent(right: Callable[..., StepPlan], step: StepBuilder) -> StepPlan:
    """The next plan may give them to other tiles while workers read from them."""
    plan = right(step)
    if step.tower is not None:
        step.tower._pool.unlock(step.in_flight.places)
        step.in_flight.places = ()
    return plan


@defect(TowerRuns, "add", first_seed=22)
def only_runs_lock_places(right: Callable[..., float], runs: TowerRuns, *arguments: Any) -> float:
    """The place of features that a plan finds may be given to another tile while it reads from there."""
    before = len(runs.works)
    tokens = right(runs, *arguments)
    written = {work.place for work in runs.works[before:]}
    runs._pool.unlock(place for place in runs.places if place not in written)
    runs.places = [place for place in runs.places if place in written]
    return tokens


@defect(FeaturePool, "flush")
def features_outlive_the_workers(_right: Callable[..., None], pool: FeaturePool) -> None:
    """New workers are taken to have what the old ones had."""
    pool._evictable.update(dict.fromkeys(pool._locks))
    pool._locks.clear()


@defect(TowerRuns, "key")
def features_are_found_by_all_scopes(right: Callable[..., FeatureKey], runs: TowerRuns, *arguments: Any) -> FeatureKey:
    """A client learns by the time of its answer what others have sent."""
    return COMMON_SCOPE, right(runs, *arguments)[1]


@defect(Scheduler, "fail_step", first_seed=1475)
def void_plans_hold_no_tiles(right: Callable[..., Any], scheduler: Scheduler, step_id: int) -> Any:
    """The store writes other pixels where workers still read."""
    ended = right(scheduler, step_id)
    for record in scheduler.in_flight:
        record.tiles = ()
    return ended


@defect(TowerRuns, "add")
def a_chunk_takes_the_first_rows_of_a_tile(right: Callable[..., float], runs: TowerRuns, *arguments: Any) -> float:
    """Wherever in the tile it begins."""
    before = len(runs.placed)
    tokens = right(runs, *arguments)
    for index, each in enumerate(runs.placed[before:], before):
        runs.placed[index] = structs.replace(each, row=each.row // runs._rows * runs._rows)
    return tokens


@defect(TowerRuns, "ahead")
def runs_are_planned_without_places(right: Callable[..., Ahead], runs: TowerRuns, *arguments: Any) -> Ahead:
    """A chunk is not cut before a tile that finds no place."""
    return right(runs, *arguments)._replace(end=arguments[-1])


@defect(Position, "set_prompt_keys", first_seed=26)
def images_are_found_by_their_placeholders(_right: Callable[..., None], _position: Position, _keys: Any) -> None:
    """Two images have the same keys and values."""


@defect(Planner, "_can_begin", first_seed=22)
def a_sequence_is_admitted_without_a_chunk(_right: Callable[..., bool], _planner: Planner, *_arguments: Any) -> bool:
    """Its first tile finds no place."""
    return True


@defect(RunningSet, "pass_images")
def the_last_row_of_an_image_is_taken_for_an_output_token(right: Callable[..., None], running_set: RunningSet) -> None:
    """The embedding of its placeholder is read in its place."""
    right(running_set)
    running_set.before_images = [seq for seq in running_set.before_images if seq.num_remaining > 1]


@defect(FeaturePool, "begin", first_seed=22)
def features_are_found_from_the_first_part_on(
    right: Callable[..., BegunRun], pool: FeaturePool, *arguments: Any
) -> BegunRun:
    """A chunk reads a place that the last part has not written."""
    run = right(pool, *arguments)
    pool._made(run.key, run.place)
    return run


@defect(FeaturePool, "flush", first_seed=770)
def a_begun_run_outlives_the_workers(right: Callable[..., None], pool: FeaturePool) -> None:
    """Its next part follows none for new workers, and for those of a failed step."""
    begun = pool.begun
    right(pool)
    if begun is not None:
        pool.begun = begun
        pool._free.remove(begun.place)
        pool._locks[begun.place] = 1


@defect(TowerRuns, "ahead", first_seed=239)
def another_run_begins_before_the_last_part(right: Callable[..., Ahead], runs: TowerRuns, *arguments: Any) -> Ahead:
    """It ends the one that is begun."""
    begun, runs._pool.begun = runs._pool.begun, None
    ahead = right(runs, *arguments)
    runs._pool.begun = begun
    return ahead


@defect(TowerRuns, "add_parts", first_seed=22)
def a_part_is_planned_again(right: Callable[..., float], runs: TowerRuns, *arguments: Any, **least: Any) -> float:
    """Workers go on from the values that it has overwritten."""
    share = right(runs, *arguments, **least)
    if runs._pool.begun is not None:
        runs._pool.begun.next_part -= 1
    return share


@defect(TowerRuns, "keep_begun", first_seed=1060)
def a_run_is_begun_for_a_sequence_that_is_not_planned(_right: Callable[..., None], *_arguments: Any) -> None:
    """Nobody else gets a run until it has its turn again."""


@defect(StepBuilder, "_finish_images", first_seed=140)
def parts_of_runs_make_no_suspects(right: Callable[..., None], step: StepBuilder, *arguments: Any) -> None:
    """The sequence whose tile kills the workers is not in the plan."""
    right(step, *arguments)
    step.in_flight.run_ends = {}
