from dataclasses import replace

import pytest
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE, DraftModel
from numaserve.workers.interface.settings import KvCacheDtype, ModelSettings, WeightFormats
from numaserve.workers.layers.partition import RankPart
from numaserve.workers.planning.deployment import Deployment, make_deployment
from numaserve.workers.planning.options import DraftOptions
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks

from tests.support.configured import configured, with_experts
from tests.support.machines import GIB, OPTIONS, machine

SMALL = configured()
LARGE = configured(
    hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8, head_dim=128,
    intermediate_size=28672, max_position_embeddings=131072,
)  # fmt: skip


def part_of(shares: list[int], rank: int) -> RankPart:
    return SMALL.partition(shares).ranks[rank]


def used_bytes(deployment: Deployment, node: int) -> int:
    return sum(r.weight_bytes + r.kv_bytes + r.scratch_bytes for r in deployment.ranks if r.node == node)


def test_a_mixture_of_experts_needs_scratch_for_each_of_a_tokens_experts() -> None:
    dense, half, whole = (
        make_deployment(OPTIONS, with_experts(64, 8, dense=layers), machine(8)).ranks[0]
        for layers in (tuple(range(30)), tuple(range(15, 30)), ())
    )
    rows = 512 * 4 * (8 * (2 * 576 + 3 * 768) + 3 * 1024 + 64 - 3 * 1536)
    assert half.scratch_bytes == whole.scratch_bytes == dense.scratch_bytes + rows
    assert dense.weight_bytes < half.weight_bytes < whole.weight_bytes


def test_layers_share_tables_of_rotary_embeddings_whose_length_is_that_of_the_context() -> None:
    rotated = 64  # dimensions of a head, with a cosine and a sine for each two
    for model, tables in ((SMALL, 1), (configured("Gemma3ForCausalLM", query_pre_attn_scalar=64), 2)):
        long, short = (
            make_deployment(replace(OPTIONS, context_length=context), model, machine(8)).ranks[0].scratch_bytes
            for context in (8192, 4000)
        )
        assert long - short == tables * (8192 - 4000) * rotated * 4


def test_the_reference_has_one_rank_and_needs_expanded_weights() -> None:
    native = make_deployment(replace(OPTIONS, tp=1), SMALL, machine(2, 2))
    wanted = replace(OPTIONS, backend="reference")
    reference = make_deployment(wanted, SMALL, machine(2, 2))
    (rank,), (kernels,) = reference.ranks, native.ranks
    assert rank.cpus == kernels.cpus
    assert rank.weight_bytes == 3 * kernels.weight_bytes  # bf16, and fp32 beside it
    assert rank.scratch_bytes == kernels.scratch_bytes + GIB
    assert [launch.backend for launch in reference.launches] == ["reference"]
    assert "differ slightly" in reference.notes[-1]
    with pytest.raises(OperatorError, match="--backend reference runs on one rank, not 2: leave out --tp"):
        make_deployment(replace(wanted, tp=2), SMALL, machine(2, 2))


def test_the_reference_keeps_what_codes_of_the_kv_cache_stand_for() -> None:
    in_bf16, in_int8 = (
        make_deployment(
            replace(OPTIONS, backend="reference", settings=ModelSettings(kv_cache_dtype=dtype)), SMALL, machine(8)
        )
        .ranks[0]
        .kv_bytes
        for dtype in ("bf16", "int8")
    )
    assert in_int8 == 2 * in_bf16


def test_layers_that_are_skipped_are_told_about() -> None:
    assert not make_deployment(OPTIONS, SMALL, machine(8)).notes
    deployment = make_deployment(OPTIONS, replace(SMALL, skipped_layers=2), machine(8))
    assert deployment.notes == ("the checkpoint's multi-token prediction (MTP) layers are skipped: 2",)
    assert deployment.ranks == make_deployment(OPTIONS, SMALL, machine(8)).ranks


def test_launches_tell_every_rank_the_whole_group() -> None:
    deployment = make_deployment(OPTIONS, SMALL, machine(43, 43, 42))
    assert [launch.rank for launch in deployment.launches] == [0, 1, 2]
    for launch in deployment.launches:
        assert launch.world_size == 3
        assert launch.weights == [43, 43, 42]
        assert launch.nodes == [0, 1, 2]
        assert [len(cpus) for cpus in launch.cpus] == [43, 43, 42]
        assert (launch.ring_fd, launch.ring_nonce) == (-1, 0)
        assert launch.capacity.num_pages == deployment.capacity.num_pages
    assert deployment.ring_lanes == 42


def test_bytes_of_each_rank_are_those_of_its_shard() -> None:
    deployment = make_deployment(replace(OPTIONS, tp=2), SMALL, machine(2))
    for rank in deployment.ranks:
        assert rank.weight_bytes == part_of([1, 1], rank.rank).weight_bytes()
        assert rank.kv_bytes == deployment.capacity.num_pages * SMALL.decoder.page_bytes(
            part_of([1, 1], rank.rank), "bf16"
        )
    assert deployment.ranks[0].kv_bytes == deployment.ranks[1].kv_bytes  # each rank has two of three KV heads
    assert deployment.ranks[0].weight_bytes > deployment.ranks[1].weight_bytes  # 9 query heads are 5 + 4


def test_a_ring_slot_holds_the_largest_message_in_whole_pages() -> None:
    deployment = make_deployment(replace(OPTIONS, max_step_tokens=8192), SMALL, machine(2, 2))
    assert deployment.ring_slot_bytes == 8192 * 576 * 4
    deployment = make_deployment(OPTIONS, SMALL, machine(2, 2))
    assert deployment.ring_slot_bytes == 64 * (49152 // 2) * 4
    assert deployment.ring_slot_bytes % 4096 == 0


@pytest.mark.parametrize(("hidden_size", "tokens", "requests"), [(144, 512, 4), (576, 500, 4), (144, 70, 70)])
def test_every_message_fits_a_slot_of_the_ring(hidden_size: int, tokens: int, requests: int) -> None:
    model = configured(hidden_size=hidden_size, num_attention_heads=4, num_key_value_heads=2, vocab_size=200)
    options = replace(OPTIONS, max_step_tokens=tokens, max_running_requests=requests)
    deployment = make_deployment(options, model, machine(2, 2))
    limits = Capacity.of_program(
        deployment.capacity.max_step_tokens, deployment.capacity.max_logit_rows, requests, 1, 1
    )
    for part in model.partition([2, 2]).ranks:
        ranks = Ranks((2, 2), part.rank, deployment.ring_slot_bytes)
        b = ProgramBuilder(ProgramSetup(model.decoder.shape(part), limits, ranks, options.settings))
        model.decoder.forward(b, part)
        messages = {each.nbytes for operation in b.fused() for each in operation.buffers if each.collective}
        assert 0 < max(messages) <= deployment.ring_slot_bytes


def test_a_small_model_takes_no_more_pages_than_its_batch_can_use() -> None:
    deployment = make_deployment(replace(OPTIONS, max_running_requests=4), SMALL, machine(8, free_gib=500))
    assert deployment.capacity.num_pages == 4 * 8192 // PAGE_SIZE + 1


def test_kv_takes_what_weights_and_scratch_leave_of_the_fraction() -> None:
    deployment = make_deployment(OPTIONS, LARGE, machine(40, 40, free_gib=200))
    per_page = deployment.ranks[0].kv_bytes // deployment.capacity.num_pages
    assert used_bytes(deployment, 0) <= 0.85 * 200 * GIB < used_bytes(deployment, 0) + 2 * per_page


def test_virtual_nodes_share_their_node_memory() -> None:
    deployment = make_deployment(replace(OPTIONS, tp=2), SMALL, machine(2, free_gib=4))
    assert used_bytes(deployment, 0) <= 0.85 * 4 * GIB
    assert deployment.capacity.num_pages > 8192 // PAGE_SIZE


def test_a_cgroup_limit_counts_for_all_ranks_together() -> None:
    deployment = make_deployment(OPTIONS, SMALL, machine(4, 4, free_gib=48, cgroup_gib=4))
    assert used_bytes(deployment, 0) + used_bytes(deployment, 1) <= 0.85 * 4 * GIB


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_a_quantized_kv_cache_has_nearly_twice_the_pages(dtype: KvCacheDtype) -> None:
    quantized = ModelSettings(kv_cache_dtype=dtype)
    wide = make_deployment(replace(OPTIONS, kv_cache_gib=1.0), SMALL, machine(4, 4))
    deployment = make_deployment(replace(OPTIONS, kv_cache_gib=1.0, settings=quantized), SMALL, machine(4, 4))
    assert {launch.settings for launch in deployment.launches} == {quantized}
    assert deployment.capacity.num_pages * (64 + 2) == pytest.approx(wide.capacity.num_pages * 2 * 64, rel=0.01)
    for rank in deployment.ranks:
        assert rank.kv_bytes == deployment.capacity.num_pages * SMALL.decoder.page_bytes(
            part_of([4, 4], rank.rank), dtype
        )


def test_kv_cache_gib_is_the_size_of_all_ranks_together() -> None:
    deployment = make_deployment(replace(OPTIONS, kv_cache_gib=1.0), SMALL, machine(4, 4))
    per_page = sum(rank.kv_bytes for rank in deployment.ranks) // deployment.capacity.num_pages
    assert GIB - per_page < sum(rank.kv_bytes for rank in deployment.ranks) <= GIB


def test_memory_bytes_bounds_weights_scratch_and_kv_cache_of_all_ranks() -> None:
    free = make_deployment(OPTIONS, SMALL, machine(4, 4))
    bounded = make_deployment(replace(OPTIONS, memory_bytes=3 * GIB), SMALL, machine(4, 4))
    taken = [
        sum(rank.weight_bytes + rank.scratch_bytes + rank.kv_bytes for rank in each.ranks) for each in (free, bounded)
    ]
    per_page = sum(rank.kv_bytes for rank in bounded.ranks) // bounded.capacity.num_pages
    assert taken[0] > 3 * GIB >= taken[1] > 3 * GIB - 2 * per_page
    said = r"too little memory within --memory-gib: .* do not fit in 512 MiB; .*: raise --memory-gib or use a smaller"
    with pytest.raises(OperatorError, match=said):
        make_deployment(replace(OPTIONS, memory_bytes=GIB // 2), SMALL, machine(4, 4))


def test_too_little_memory_for_the_weights_says_what_to_change() -> None:
    with pytest.raises(OperatorError, match=r"too little memory on node 0: weights \(1\d\d\.\d GiB\).*smaller model"):
        make_deployment(OPTIONS, LARGE, machine(8, free_gib=16))


def test_a_cgroup_limit_too_small_for_the_weights_is_named() -> None:
    with pytest.raises(OperatorError, match="the cgroup's memory limit"):
        make_deployment(OPTIONS, LARGE, machine(8, 8, free_gib=500, cgroup_gib=64))


def test_too_large_a_kv_cache_is_refused_with_the_largest_that_fits() -> None:
    with pytest.raises(OperatorError, match="lower it to at most") as caught:
        make_deployment(replace(OPTIONS, kv_cache_gib=100.0), SMALL, machine(4, free_gib=8))
    largest = float(str(caught.value).split("at most ")[1].split(",")[0])
    make_deployment(replace(OPTIONS, kv_cache_gib=largest - 0.01), SMALL, machine(4, free_gib=8))


def test_a_default_context_shrinks_to_what_the_cache_holds_and_says_so() -> None:
    deployment = make_deployment(replace(OPTIONS, kv_cache_gib=0.1), SMALL, machine(4))
    assert 1024 <= deployment.capacity.context_length < 8192
    assert deployment.capacity.num_pages == deployment.capacity.context_length // PAGE_SIZE + 1
    assert "raise --kv-cache-gib" in deployment.notes[0]


def test_a_wished_context_that_the_cache_cannot_hold_is_refused_with_the_longest_that_fits() -> None:
    options = replace(OPTIONS, kv_cache_gib=0.1, context_length=8192)
    with pytest.raises(OperatorError, match="set --context-length to at most") as caught:
        make_deployment(options, SMALL, machine(4))
    longest = int(str(caught.value).rsplit(" ", 1)[1])
    assert (
        make_deployment(replace(options, context_length=longest), SMALL, machine(4)).capacity.context_length == longest
    )


def test_a_cache_too_small_for_any_useful_context_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"raise --kv-cache-gib$"):
        make_deployment(replace(OPTIONS, kv_cache_gib=0.001), SMALL, machine(4))


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(OperatorError, match="limit of 8192 tokens: lower the option"):
        make_deployment(replace(OPTIONS, context_length=9000), SMALL, machine(4))


def test_a_step_has_room_for_one_token_of_every_running_request() -> None:
    deployment = make_deployment(replace(OPTIONS, max_step_tokens=16, max_running_requests=64), SMALL, machine(4))
    assert deployment.launches[0].capacity.max_step_tokens == 64


def test_a_step_has_room_for_a_draft_token_behind_the_next_token_of_every_running_request() -> None:
    plain, drafting = (
        make_deployment(replace(OPTIONS, max_running_requests=40, drafts=drafts), SMALL, machine(8))
        for drafts in (False, True)
    )
    assert (plain.capacity.max_logit_rows, drafting.capacity.max_logit_rows) == (64, 80)
    assert {launch.capacity.max_logit_rows for launch in drafting.launches} == {80}
    assert drafting.ranks[0].scratch_bytes > plain.ranks[0].scratch_bytes


def test_a_draft_model_takes_memory_for_weights_pages_and_scratch_beside_the_model() -> None:
    options = replace(OPTIONS, kv_cache_gib=1.0, tp=2)
    alone = make_deployment(options, LARGE, machine(2, 2, free_gib=400))
    draft = DraftOptions("/models/d", SMALL, ModelSettings(formats=WeightFormats(linear="int8")))
    both = make_deployment(replace(options, draft=draft), LARGE, machine(2, 2, free_gib=400))
    small = make_deployment(replace(options, settings=draft.settings), SMALL, machine(2, 2, free_gib=400))
    for with_draft, served, drafting in zip(both.ranks, alone.ranks, small.ranks, strict=True):
        assert with_draft.weight_bytes == served.weight_bytes + drafting.weight_bytes
        assert with_draft.scratch_bytes == served.scratch_bytes + drafting.scratch_bytes
    pages = [each.ranks[0].kv_bytes // each.capacity.num_pages for each in (both, alone, small)]
    assert pages[0] == pages[1] + pages[2]
    assert both.capacity.num_pages < alone.capacity.num_pages
    assert both.ring_slot_bytes == max(alone.ring_slot_bytes, small.ring_slot_bytes)
    assert both.launches[0].draft == DraftModel("/models/d", draft.settings)
