"""Longer steps by default, where their scratch takes little of the caches."""

from dataclasses import replace
from typing import Any

import pytest
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.deployment import Deployment, make_deployment
from numaserve.workers.planning.options import DeploymentOptions, DraftOptions
from numaserve.workers.planning.topology import Topology

from tests.support.configured import bidirectional, configured, recurrent, with_experts
from tests.support.machines import OPTIONS, machine

MAY = replace(OPTIONS, may_run_fewer=True, may_lengthen_steps=True)
SMALL = configured()
GEMMA = configured(
    "Gemma3ForCausalLM", hidden_size=1152, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=4,
    head_dim=128, sliding_window=512, sliding_window_pattern=6, max_position_embeddings=32768,
    query_pre_attn_scalar=128,
)  # fmt: skip


def both(
    model: ModelConfig, on: Topology, options: DeploymentOptions = MAY, **changes: Any
) -> tuple[Deployment, Deployment]:
    """The deployment with the steps that fit, and the one with short steps."""
    chosen = replace(options, **changes)
    return make_deployment(chosen, model, on), make_deployment(replace(chosen, may_lengthen_steps=False), model, on)


def test_steps_are_longer_where_memory_is_plenty_and_short_ones_remain_allowed() -> None:
    longer, shorter = both(SMALL, machine(4, 4))
    assert (longer.shared_step_tokens, longer.least_step_tokens) == (2048, 512)
    assert {launch.capacity.max_step_tokens for launch in longer.launches} == {2048}
    assert (shorter.shared_step_tokens, shorter.least_step_tokens) == (512, None)
    assert longer.ranks[0].scratch_bytes > shorter.ranks[0].scratch_bytes
    given = make_deployment(replace(OPTIONS, max_step_tokens=2048), SMALL, machine(4, 4))
    assert longer == replace(given, least_step_tokens=512)


@pytest.mark.parametrize(("tokens", "requests"), [(16, 64), (512, 64), (300, 1)])
def test_a_size_of_the_operator_is_kept(tokens: int, requests: int) -> None:
    options = replace(OPTIONS, max_step_tokens=tokens, max_running_requests=requests)
    deployment = make_deployment(options, SMALL, machine(8))
    assert (deployment.shared_step_tokens, deployment.least_step_tokens) == (max(tokens, requests), None)


@pytest.mark.parametrize(("requests", "least"), [(1, 512), (1000, 1000), (2048, None), (3000, None)])
def test_the_shortest_step_has_a_token_for_each_running_sequence(requests: int, least: int | None) -> None:
    deployment = make_deployment(replace(MAY, max_running_requests=requests), SMALL, machine(8))
    assert (deployment.shared_step_tokens, deployment.least_step_tokens) == (max(2048, requests), least)


def test_steps_are_as_long_as_their_scratch_leaves_nearly_all_pages() -> None:
    """With more memory scratch takes a smaller part of it: the steps become longer, one size after the other."""
    found = []
    for megabytes in (*range(700, 1200, 100), *range(1200, 5000, 1200)):
        longer, shorter = both(SMALL, machine(8, free_gib=megabytes / 1024), context_length=1024)
        found.append(longer.shared_step_tokens)
        assert longer.capacity.num_pages >= shorter.capacity.num_pages * 15 / 16
        assert longer.capacity.max_slots == shorter.capacity.max_slots
        if longer.shared_step_tokens < 2048:
            more = make_deployment(
                replace(
                    MAY, may_lengthen_steps=False, max_step_tokens=2 * longer.shared_step_tokens, context_length=1024
                ),
                SMALL,
                machine(8, free_gib=megabytes / 1024),
            )
            assert more.capacity.num_pages < shorter.capacity.num_pages * 15 / 16
    assert found == sorted(found) and set(found) == {512, 1024, 2048}


def test_a_model_that_only_fits_with_short_steps_has_these() -> None:
    fits = []
    for megabytes in range(500, 700, 10):
        on = machine(8, free_gib=megabytes / 1024)
        try:
            fits.append(make_deployment(replace(OPTIONS, context_length=64), SMALL, on))
        except OperatorError as error:
            with pytest.raises(OperatorError) as caught:
                make_deployment(replace(OPTIONS, context_length=64, may_lengthen_steps=True), SMALL, on)
            assert str(caught.value) == str(error)
        else:
            chosen = make_deployment(replace(OPTIONS, context_length=64, may_lengthen_steps=True), SMALL, on)
            assert chosen == fits[0]
            break
    assert len(fits) == 1 and not fits[0].least_step_tokens


def test_a_cache_of_a_given_size_is_kept_and_longer_steps_take_the_rest() -> None:
    longer, shorter = both(SMALL, machine(8), kv_cache_gib=0.5)
    assert longer.shared_step_tokens == 2048 and longer.capacity.num_pages == shorter.capacity.num_pages
    context = replace(MAY, context_length=8192, kv_cache_gib=1.0)
    assert make_deployment(context, SMALL, machine(8)).capacity.context_length == 8192


@pytest.mark.parametrize("free_gib", [1.0, 1.5, 3, 6, 14])
@pytest.mark.parametrize("model", [GEMMA, recurrent(), with_experts(32, 4)], ids=["windows", "states", "experts"])
def test_no_slot_table_or_cached_state_is_lost(model: ModelConfig, free_gib: float) -> None:
    try:
        longer, shorter = both(model, machine(8, free_gib=free_gib))
    except OperatorError:
        return
    assert longer.capacity.max_slots == shorter.capacity.max_slots
    assert longer.capacity.num_pages >= shorter.capacity.num_pages * 15 / 16
    assert longer.capacity.num_snapshots >= shorter.capacity.num_snapshots * 15 / 16
    assert len(longer.window_tables) == len(shorter.window_tables)
    for table, before in zip(longer.window_tables, shorter.window_tables, strict=True):
        anchors, anchors_before = (
            each.num_pages - each.window.least_pages(longer.capacity.max_slots, tokens)
            for each, tokens in ((table, longer.shared_step_tokens), (before, 512))
        )
        assert anchors >= anchors_before * 15 / 16
    # Raises an error for too small tables.
    SchedulerConfig(longer.capacity, longer.shared_step_tokens, longer.least_step_tokens, windows=longer.windows)


def test_windows_allow_longer_steps_where_anchors_keep_their_pages() -> None:
    sizes = {free: both(GEMMA, machine(8, free_gib=free))[0].shared_step_tokens for free in (1.2, 30)}
    assert sizes == {1.2: 512, 30: 2048}


def test_whole_prompts_and_the_reference_keep_short_steps() -> None:
    longer, shorter = both(bidirectional(max_position_embeddings=300), machine(8), settings=ModelSettings(pooled=True))
    assert longer == shorter and longer.shared_step_tokens == 512
    longer, shorter = both(SMALL, machine(8), backend="reference")
    assert longer == shorter and longer.shared_step_tokens == 512


def test_a_draft_model_reads_as_long_steps_and_its_scratch_counts() -> None:
    draft = DraftOptions("/models/d", SMALL, ModelSettings())
    found = [
        [
            both(SMALL, machine(8, free_gib=free), context_length=1024, draft=each)[0].shared_step_tokens
            for each in (None, draft)
        ]
        for free in (2.0, 2.5, 3.0, 10.0)
    ]
    assert found[-1] == [2048, 2048]
    assert all(alone >= drafting for alone, drafting in found) and any(alone > drafting for alone, drafting in found)
