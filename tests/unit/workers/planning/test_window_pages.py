"""Window tables in the plan of memory: which models have some, how many pages, and what they save."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs
from numaserve.workers.interface.settings import DEFAULT_SETTINGS
from numaserve.workers.interface.windows import Window, WindowTable
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.deployment import Deployment, make_deployment, place
from numaserve.workers.planning.options import DraftOptions
from numaserve.workers.planning.roofline.memory import node_memory
from numaserve.workers.planning.topology import Topology

from tests.support.configured import configured
from tests.support.machines import GIB, OPTIONS, machine

LONG = 32768
DEFAULT = replace(OPTIONS, may_run_fewer=True, context_length=LONG)


def gemma3(**changes: Any) -> ModelConfig:
    """Gemma 3 27B, or another one of its proportions: five layers in six have a window of 1024 tokens."""
    return configured(
        "Gemma3ForCausalLM",
        hidden_size=5376, intermediate_size=21504, num_hidden_layers=62, num_attention_heads=32,
        num_key_value_heads=16, head_dim=128, sliding_window=1024, sliding_window_pattern=6, vocab_size=262208,
        max_position_embeddings=131072, query_pre_attn_scalar=168, hidden_activation="gelu_pytorch_tanh",
        **changes,
    )  # fmt: skip


def gpt_oss() -> ModelConfig:
    """gpt-oss-20b: every other layer has a window of 128 tokens."""
    return configured(
        "GptOssForCausalLM",
        hidden_size=2880, intermediate_size=2880, num_hidden_layers=24, num_attention_heads=64, num_key_value_heads=8,
        head_dim=64, sliding_window=128, num_local_experts=32, num_experts_per_tok=4, max_position_embeddings=131072,
        layer_types=["sliding_attention", "full_attention"] * 12, attention_bias=True, tie_word_embeddings=False,
        rope_theta=150000.0, vocab_size=201088,
    )  # fmt: skip


def sliding(**changes: Any) -> ModelConfig:
    """A small model whose layers all have a window."""
    return configured(
        "MistralForCausalLM", sliding_window=1024, num_attention_heads=8, num_key_value_heads=4, **changes
    )


def page_bytes(model: ModelConfig) -> int:
    return model.decoder.page_bytes(model.partition([1]).ranks[0], "bf16")


def window_pages(deployment: Deployment) -> list[int]:
    return [table.num_pages for table in deployment.window_tables]


def on(free_gib: float) -> Topology:
    return machine(8, free_gib=free_gib)


@pytest.mark.parametrize(("make", "most"), [(gemma3, 0.25), (gpt_oss, 0.6)])
def test_a_long_sequence_takes_a_part_of_the_memory_of_full_attention(make: Any, most: float) -> None:
    model = make()
    (rank,) = model.partition([1]).ranks
    ((window,), (part,)) = model.decoder.windows, model.decoder.window_page_bytes(rank, "bf16")
    pages, whole = LONG // 32, model.decoder.page_bytes(rank, "bf16")
    ((held, more),) = [(window.least_pages(1, 0), window.least_pages(2, 0))]
    assert more == 2 * held
    assert (pages * (whole - part) + held * part) / (pages * whole) <= most


@pytest.mark.parametrize(("make", "free_gib", "gain"), [(gemma3, 96, 2.2), (gemma3, 400, 3.4), (gpt_oss, 64, 1.6)])
def test_the_same_memory_holds_more_tokens(make: Any, free_gib: float, gain: float) -> None:
    model = make()
    deployment = make_deployment(DEFAULT, model, on(free_gib))
    (rank,) = deployment.ranks
    assert rank.nbytes <= 0.85 * free_gib * GIB
    assert deployment.capacity.num_pages >= gain * (rank.kv_bytes // page_bytes(model))
    ((window, pages),) = deployment.window_tables
    assert pages >= window.least_pages(deployment.capacity.max_slots, deployment.shared_step_tokens)
    assert deployment.launches[0].capacity.window_pages == (pages,)
    if deployment.capacity.num_pages < deployment.capacity.max_slots * LONG // 32:
        assert rank.nbytes > 0.84 * free_gib * GIB  # nothing is left over


def test_a_default_number_of_slots_is_lowered_for_long_sequences_and_a_given_one_is_kept() -> None:
    lowered = make_deployment(DEFAULT, gemma3(), on(96))
    assert lowered.capacity.max_slots == 32
    assert "at most 32 sequences run at a time instead of 64, because more of them would" in lowered.notes[-1]
    given = make_deployment(replace(DEFAULT, may_run_fewer=False), gemma3(), on(96))
    assert (given.capacity.max_slots, given.window_tables, given.notes) == (64, (), ())
    assert given.capacity.num_pages == given.ranks[0].kv_bytes // page_bytes(gemma3())
    few = make_deployment(replace(DEFAULT, may_run_fewer=False, max_running_requests=8), gemma3(), on(96))
    assert few.capacity.num_pages > lowered.capacity.num_pages


def test_more_memory_never_holds_fewer_tokens() -> None:
    sizes = [make_deployment(DEFAULT, gemma3(), on(gib)) for gib in (80, 96, 110, 130, 160, 250, 400, 800)]
    for less, more in pairwise(sizes):
        assert more.capacity.num_pages >= less.capacity.num_pages
        assert window_pages(more) >= window_pages(less) or more.capacity.max_slots > less.capacity.max_slots


@pytest.mark.parametrize("context", [512, 1024])
def test_there_is_one_table_where_the_window_covers_the_context(context: int) -> None:
    deployment = make_deployment(replace(OPTIONS, context_length=context), gemma3(), on(400))
    assert deployment.window_tables == ()
    assert deployment.launches[0].capacity.window_pages == ()


def test_there_is_one_table_where_plans_keep_all_pages() -> None:
    assert make_deployment(replace(DEFAULT, window_tables=False), gemma3(), on(400)).window_tables == ()


def test_there_is_one_table_where_short_sequences_need_as_many_window_pages() -> None:
    assert make_deployment(replace(OPTIONS, context_length=1280), gemma3(), on(400)).window_tables == ()


def test_pages_without_memory_are_enough_for_all_slots() -> None:
    model = sliding(max_position_embeddings=LONG)
    assert model.decoder.windows == [Window(1024)]
    deployment = make_deployment(DEFAULT, model, on(6))
    assert deployment.capacity.num_pages == 64 * LONG // 32 + 1
    assert deployment.ranks[0].kv_bytes == window_pages(deployment)[0] * page_bytes(model)
    least = Window(1024).least_pages(64, 512)
    assert window_pages(deployment)[0] > 1.5 * least


def test_without_a_prefix_cache_no_pages_are_reserved_for_anchors() -> None:
    least = Window(1024).least_pages(64, 512)
    model = sliding(max_position_embeddings=LONG)
    for free_gib in (6, 400):
        deployment = make_deployment(replace(DEFAULT, prefix_cache=False), model, on(free_gib))
        assert window_pages(deployment) == [least]
    cached, alone = (make_deployment(replace(DEFAULT, prefix_cache=each), gemma3(), on(130)) for each in (True, False))
    assert alone.capacity.num_pages > cached.capacity.num_pages


def test_the_size_of_the_cache_that_is_given_covers_window_tables() -> None:
    deployment = make_deployment(replace(DEFAULT, kv_cache_gib=20.0), gemma3(), on(400))
    assert deployment.window_tables
    assert 19.9 * GIB < deployment.ranks[0].kv_bytes <= 20 * GIB


def test_ranks_have_the_same_pages_and_their_own_memory() -> None:
    deployment = make_deployment(DEFAULT, gemma3(), machine(8, 4, free_gib=200))
    (table,) = deployment.window_tables
    assert [launch.capacity.window_pages for launch in deployment.launches] == [(table.num_pages,)] * 2
    first, second = deployment.ranks
    assert first.kv_bytes > second.kv_bytes
    assert all(rank.nbytes <= 0.85 * 200 * GIB for rank in deployment.ranks)


def test_chunks_have_a_table_and_a_draft_model_has_none() -> None:
    draft = DraftOptions("/models/d", sliding(max_position_embeddings=LONG), DEFAULT_SETTINGS)
    model = gemma3()
    options = replace(DEFAULT, draft=draft, drafter="draft_model", drafts=True, kv_cache_gib=40.0)
    deployment = make_deployment(options, model, on(400))
    assert [table.window for table in deployment.window_tables] == [Window(1024)]
    (rank,) = model.partition([1]).ranks
    (part,) = model.decoder.window_page_bytes(rank, "bf16")
    common = model.decoder.page_bytes(rank, "bf16") - part + page_bytes(draft.config)
    assert deployment.ranks[0].kv_bytes == deployment.capacity.num_pages * common + window_pages(deployment)[0] * part


def test_codes_of_a_byte_have_more_pages() -> None:
    settings = structs.replace(DEFAULT_SETTINGS, kv_cache_dtype="int8")
    wide, narrow = (
        make_deployment(replace(DEFAULT, settings=each), gemma3(), on(130)) for each in (DEFAULT_SETTINGS, settings)
    )
    assert narrow.capacity.num_pages > 1.9 * wide.capacity.num_pages


def test_a_plan_counts_window_pages() -> None:
    model, pages = gemma3(), 8 * LONG // 32 + 1
    options, topology = replace(OPTIONS, max_running_requests=8), on(400)
    deployment = make_deployment(replace(options, context_length=LONG), model, topology)
    partition = model.partition([8])
    ranks = place(options, topology).ranks
    (memory,) = node_memory(options, model, topology, ranks, partition=partition, context=LONG)
    assert memory.kv_cache <= 0.25 * pages * page_bytes(model)
    assert deployment.window_tables == (WindowTable(Window(1024), window_pages(deployment)[0]),)
