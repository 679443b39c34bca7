"""Promise: window tables change no bit, alone, in a batch, in chunks, from the cache, retracted, or with drafts."""

from dataclasses import replace
from pathlib import Path

import pytest
from numaserve.server.speculation import speculation
from numaserve.workers.interface.protocol import StepPlan
from numaserve.workers.interface.windows import BLOCK_PAGES, Window, WindowTable
from numaserve.workers.models.load import load_model_config

from tests.support.plan_limits import with_limits
from tests.support.played_drafts import played
from tests.support.same_bits import (
    BATCH,
    FEW_PAGES,
    make_group,
    random_requests,
    save_tiny_model,
    scheduler_config,
    ways_to_serve,
)
from tests.support.traffic import Answer, Request, Traffic, assert_serves, each_alone, one_by_one

STEP_TOKENS = scheduler_config().shared_step_tokens
# mixtral has a window in every layer, as Mistral has, and llama4 chunks.
MODELS = ("gpt_oss", "gemma2", "mixtral", "olmo3", "llama4", "smollm3", "gemma4", "mimo_v2_flash")
WITH_SINKS = ("gpt_oss", "mimo_v2_flash")  # values of the second are narrower than its keys
ANCHORS = 40  # pages


def window_of(model: Path) -> Window:
    (window,) = load_model_config(model).decoder.windows
    return window


def table_of(window: Window) -> WindowTable:
    return WindowTable(window, window.least_pages(BATCH, STEP_TOKENS) + ANCHORS)


def longer_requests() -> list[Request]:
    """All prompts are a block longer than the window, but for a few."""
    requests = random_requests()
    extended = [replace(each, prompt=(each.prompt * 20)[: 380 + 13 * i]) for i, each in enumerate(requests[:8])]
    return [*extended, *requests[8:]]


def answers_without(model: Path, tp: int, requests: list[Request], **settings: object) -> list[Answer]:
    with make_group(model, tp, **settings) as group:
        return each_alone(group, scheduler_config(), requests)


def given_back(plans: list[StepPlan]) -> int:
    """The most pages of a window table that a plan gives back."""
    return max((work.first for plan in plans for work in plan.windows or ()), default=0)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_a_window_table_changes_no_bit(name: str, tp: int, tmp_path: Path) -> None:
    model, requests = save_tiny_model(name, tmp_path), longer_requests()
    alone, table = answers_without(model, tp, requests), table_of(window_of(model))
    with make_group(model, tp, window_pages=[table.num_pages]) as group:
        config = scheduler_config(window_tables=(table,))
        assert one_by_one(Traffic(group, config), requests) == alone
        for ahead, changes in ways_to_serve(group):
            traffic = Traffic(group, with_limits(config, **changes), ahead=ahead)
            assert_serves(traffic, requests, alone)
            assert given_back(traffic.plans) >= BLOCK_PAGES
            assert (traffic.scheduler.stats().retractions > 0) == (changes.get("num_pages") == FEW_PAGES)
            assert (traffic.scheduler.stats().prefix_hit_tokens > 0) == ("enable_prefix_cache" in changes)


@pytest.mark.parametrize("name", WITH_SINKS)
def test_drafts_change_no_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "BLIND", 12)
    model, requests = save_tiny_model(name, tmp_path), longer_requests()
    alone, table = answers_without(model, 1, requests), table_of(window_of(model))
    with make_group(model, 1, window_pages=[table.num_pages]) as group:
        config = scheduler_config(window_tables=(table,), enable_prefix_cache=True, num_pages=FEW_PAGES)
        traffic = Traffic(group, config, ahead=2, drafters=played(requests, alone, wrong=7))
        assert_serves(traffic, requests, alone)
        assert min(traffic.scheduler.drafted["played", right] for right in (True, False)) > 100


@pytest.mark.spread("kv_cache_dtype")
@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("name", WITH_SINKS)
def test_codes_of_a_byte_change_no_bit(name: str, kv_cache_dtype: str, tmp_path: Path) -> None:
    model, requests = save_tiny_model(name, tmp_path), longer_requests()
    alone = answers_without(model, 2, requests, kv_cache_dtype=kv_cache_dtype)
    table = table_of(window_of(model))
    with make_group(model, 2, window_pages=[table.num_pages], kv_cache_dtype=kv_cache_dtype) as group:
        traffic = Traffic(group, scheduler_config(window_tables=(table,), enable_prefix_cache=True), ahead=2)
        assert_serves(traffic, requests, alone)


def test_the_reference_answers_the_same_with_a_window_table(tmp_path: Path) -> None:
    model, requests = save_tiny_model("gpt_oss", tmp_path), longer_requests()[:3]
    table = table_of(window_of(model))
    alone = answers_without(model, 1, requests, backend="reference")
    with make_group(model, 1, window_pages=[table.num_pages], backend="reference") as group:
        assert one_by_one(Traffic(group, scheduler_config(window_tables=(table,))), requests) == alone
