"""Recurrent states in the plan of memory: slots, snapshots, defaults and refusals."""

import math
import re
from dataclasses import replace

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import DEFAULT_SETTINGS
from numaserve.workers.planning.deployment import Deployment, make_deployment, place
from numaserve.workers.planning.options import DeploymentOptions, DraftOptions
from numaserve.workers.planning.roofline.memory import node_memory, remedies
from numaserve.workers.planning.topology import Topology

from tests.support.configured import configured, recurrent
from tests.support.machines import GIB, OPTIONS, machine

MIB = 1 << 20
# The states of Qwen3.5-9B, Qwen3.6-35B-A3B and Qwen3.5-27B, with heads of attention of 256 dimensions.
SHAPES = {"9b": (32, 32, 4), "35b-a3b": (40, 32, 2), "27b": (64, 48, 4)}
MODELS = {
    name: recurrent(
        layers,
        values=values,
        num_attention_heads=16,
        num_key_value_heads=kv,
        head_dim=256,
        max_position_embeddings=262144,
    )
    for name, (layers, values, kv) in SHAPES.items()
}
MODEL = MODELS["9b"]
DEFAULT = replace(OPTIONS, may_run_fewer=True)


def states(deployment: Deployment) -> int:
    return sum(rank.state_bytes for rank in deployment.ranks)


def complaint(options: DeploymentOptions, on: Topology) -> str:
    with pytest.raises(OperatorError) as caught:
        make_deployment(options, MODEL, on)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("name", "mib", "kib"), [("9b", 50.2, 32), ("35b-a3b", 62.8, 20), ("27b", 149.6, 64)])
def test_states_and_pages_of_published_models_take_their_known_memory(name: str, mib: float, kib: int) -> None:
    decoder = MODELS[name].decoder
    (whole,) = MODELS[name].partition([1]).ranks
    assert decoder.state_bytes(whole) / MIB == pytest.approx(mib, rel=2e-3)
    assert decoder.page_bytes(whole, "bf16") == 32 * kib * 1024
    # Ranks divide the heads: all the states are there, and nothing twice, but for rounding up to cache lines.
    parts = MODELS[name].partition([3, 2, 2]).ranks
    assert sum(map(decoder.state_bytes, parts)) == pytest.approx(decoder.state_bytes(whole), rel=1e-4)
    assert all(decoder.snapshot_bytes(part) == decoder.state_bytes(part) for part in parts)


def test_states_of_slots_and_snapshots_are_memory_of_their_own() -> None:
    deployment = make_deployment(DEFAULT, MODEL, machine(4, 4))
    decoder, slots = MODEL.decoder, deployment.capacity.max_slots
    for rank, part in zip(deployment.ranks, MODEL.partition([4, 4]).ranks, strict=True):
        assert rank.state_bytes == (slots + deployment.capacity.num_snapshots) * decoder.state_bytes(part)
        assert rank.kv_bytes == deployment.capacity.num_pages * decoder.page_bytes(part, "bf16")
        assert rank.nbytes == rank.weight_bytes + rank.kv_bytes + rank.state_bytes + rank.scratch_bytes
        assert rank.nbytes <= 0.85 * 48 * GIB
    assert {(each.capacity.max_slots, each.capacity.num_snapshots) for each in deployment.launches} == {
        (slots, deployment.capacity.num_snapshots)
    }


def test_a_model_without_states_has_none_and_runs_as_many_sequences() -> None:
    deployment = make_deployment(DEFAULT, configured(), machine(4, free_gib=2))
    assert (deployment.capacity.num_snapshots, deployment.capacity.max_slots, states(deployment)) == (0, 64, 0)
    with pytest.raises(OperatorError, match=r"--state-cache-gib 2 needs a model with recurrent layers.*: leave the"):
        make_deployment(replace(OPTIONS, state_cache_gib=2.0), configured(), machine(4))
    assert make_deployment(replace(OPTIONS, state_cache_gib=0.0), configured(), machine(4)).capacity.num_snapshots == 0


@pytest.mark.parametrize("free_gib", [400, 40, 24, 12, 6, 3])
def test_by_default_each_slot_has_snapshots_and_fewer_slots_are_left_where_memory_is_small(free_gib: int) -> None:
    deployment = make_deployment(DEFAULT, MODEL, machine(8, free_gib=free_gib))
    slots, snapshots = deployment.capacity.max_slots, deployment.capacity.num_snapshots
    (rank,) = deployment.ranks
    left = int(0.85 * free_gib * GIB) - rank.weight_bytes - rank.scratch_bytes
    each = rank.state_bytes // (slots + snapshots)
    assert 1.5 * slots <= snapshots <= 8 * slots
    assert snapshots * each <= (left - slots * each) / 4
    if slots < 64:
        more = 2 * slots
        assert (left - more * each) / 4 < math.ceil(1.5 * more) * each + 64 * MIB  # scratch is smaller with fewer slots
        assert f"at most {slots} sequences run at a time instead of 64" in deployment.notes[-1]
    assert (slots == 64) == (free_gib >= 40)


def test_without_snapshots_no_slot_is_given_up_for_them() -> None:
    on = machine(8, free_gib=12)
    short = replace(DEFAULT, context_length=8192)
    cached, alone = (make_deployment(replace(short, state_cache_gib=gib), MODEL, on) for gib in (None, 0.0))
    assert (cached.capacity.max_slots, alone.capacity.max_slots) == (16, 64)
    assert (alone.capacity.num_snapshots, alone.notes) == (0, ())


def test_a_number_of_sequences_that_is_given_is_kept_with_the_snapshots_that_fit() -> None:
    deployment = make_deployment(OPTIONS, MODEL, machine(8, free_gib=12))
    assert deployment.capacity.max_slots == 64
    assert 0 < deployment.capacity.num_snapshots < 64
    assert deployment.reuses_prefixes
    assert "always computed whole" not in " ".join(deployment.notes)


def test_without_snapshots_no_prefix_is_reused_which_is_said_where_memory_is_the_reason() -> None:
    small = machine(8, free_gib=4.5)
    deployment = make_deployment(replace(OPTIONS, context_length=256), MODEL, small)
    assert (deployment.capacity.num_snapshots, deployment.reuses_prefixes) == (0, False)
    assert deployment.notes[-1].startswith("prompts are always computed whole, because too little memory is left")
    given = make_deployment(replace(OPTIONS, context_length=256, state_cache_gib=0.0), MODEL, small)
    assert (given.capacity.num_snapshots, given.reuses_prefixes, given.notes) == (0, False, ())


def test_state_cache_gib_is_the_size_of_the_snapshots_of_all_ranks() -> None:
    for gib in (0.0, 1.0, 4.0):
        deployment = make_deployment(replace(DEFAULT, state_cache_gib=gib), MODEL, machine(4, 4))
        each = sum(MODEL.decoder.snapshot_bytes(part) for part in MODEL.partition([4, 4]).ranks)
        assert gib * GIB - each < deployment.capacity.num_snapshots * each <= gib * GIB
        assert deployment.capacity.max_slots == 64


def test_snapshots_take_what_a_kv_cache_for_short_contexts_leaves() -> None:
    short = replace(DEFAULT, context_length=512)  # 64 sequences need 1 GiB of KV cache
    long, brief = (make_deployment(options, MODEL, machine(8, free_gib=12)) for options in (DEFAULT, short))
    assert (long.capacity.max_slots, long.capacity.num_snapshots) == (16, 43)
    assert brief.capacity.max_slots == 64
    assert brief.capacity.num_pages == 64 * 16 + 1
    assert 96 <= brief.capacity.num_snapshots <= 150
    assert brief.ranks[0].nbytes <= 0.85 * 12 * GIB
    given = make_deployment(replace(short, kv_cache_gib=6.0), MODEL, machine(8, free_gib=12))
    assert (given.capacity.num_pages, given.capacity.num_snapshots) == (
        brief.capacity.num_pages,
        brief.capacity.num_snapshots,
    )


def test_a_kv_cache_of_a_given_size_leaves_what_it_leaves_for_snapshots() -> None:
    large = replace(DEFAULT, kv_cache_gib=36.0)
    deployment = make_deployment(large, MODEL, machine(8))
    assert deployment.capacity.num_pages == 36 * 1024
    assert deployment.capacity.max_slots == 32
    assert 48 <= deployment.capacity.num_snapshots < 96
    small = make_deployment(replace(large, kv_cache_gib=1.0), MODEL, machine(8))
    assert (small.capacity.max_slots, small.capacity.num_pages) == (64, 1024)
    assert small.capacity.num_snapshots > 96
    with pytest.raises(OperatorError, match="--kv-cache-gib 48 does not fit"):
        make_deployment(replace(large, kv_cache_gib=48.0), MODEL, machine(8))


def test_states_that_are_too_large_are_refused_with_what_fits() -> None:
    short = replace(OPTIONS, context_length=32)
    said = complaint(replace(short, max_running_requests=200), machine(8, free_gib=8))
    assert "too little memory on node 0: weights (" in said
    assert re.search(r"scratch \(\d+ MiB\) and recurrent states of 200 sequences \(9\.8 GiB\) do not fit in", said)
    most = int(said.split("set --max-running-requests to at most ")[1].split(",")[0])
    assert (
        make_deployment(replace(short, max_running_requests=most), MODEL, machine(8, free_gib=8)).capacity.num_pages
        >= 2
    )
    tiny = machine(8, free_gib=0.7)
    assert "--max-running-requests" not in complaint(OPTIONS, tiny)  # none fits
    assert "recurrent states of a sequence (" in complaint(DEFAULT, tiny)


def test_a_state_cache_that_is_too_large_is_refused_with_the_largest_that_fits() -> None:
    said = complaint(replace(DEFAULT, state_cache_gib=100.0, context_length=8192), machine(8))
    assert "the recurrent states of 64 sequences: lower it" in said
    largest = float(said.split("lower it to at most ")[1].split(",")[0])
    deployment = make_deployment(replace(DEFAULT, state_cache_gib=largest, context_length=32), MODEL, machine(8))
    assert deployment.capacity.num_snapshots > 500
    said = complaint(replace(DEFAULT, state_cache_gib=largest, context_length=8192), machine(8))
    assert "the KV cache holds" in said
    assert "lower --state-cache-gib" in said


@pytest.mark.parametrize("free_gib", [3.5, 5.0, 9.0])
def test_a_plan_proposes_fewer_sequences_or_cached_states_where_these_would_fit(free_gib: float) -> None:
    options, on = replace(OPTIONS, max_running_requests=48), machine(8, free_gib=free_gib)
    ranks, divided = place(options, on).ranks, MODEL.partition([8])

    def fits(changed: DeploymentOptions) -> bool:
        return node_memory(changed, MODEL, on, ranks, partition=divided, context=2048)[0].fits

    proposed = dict(
        each.rsplit(" ", 1)
        for each in remedies(options, MODEL, on, ranks, partition=divided, context=2048)
        if each.startswith(("--max-running-requests ", "--state-cache-gib "))
    )
    assert not fits(options)
    assert fits(replace(options, max_running_requests=int(proposed["--max-running-requests"])))
    assert ("--state-cache-gib" in proposed) == fits(replace(options, state_cache_gib=0.0)) == (free_gib > 5)
    if gib := float(proposed.get("--state-cache-gib", 0)):
        assert fits(replace(options, state_cache_gib=gib))


@pytest.mark.parametrize(("name", "most"), [("9b", 9), ("35b-a3b", 9), ("27b", 11)])
def test_draft_tokens_take_a_quarter_of_the_memory_of_states(name: str, most: int) -> None:
    model, options = MODELS[name], replace(DEFAULT, drafts=True)
    plain, drafting = (make_deployment(each, model, machine(4, 4)) for each in (DEFAULT, options))
    assert {each.capacity.max_drafts for each in plain.launches} == {0}
    assert {each.capacity.max_drafts for each in drafting.launches} == {most}
    decoder, slots = model.decoder, drafting.capacity.max_slots
    for rank, part in zip(drafting.ranks, model.partition([4, 4]).ranks, strict=True):
        drafts = most * decoder.draft_bytes(part)
        assert 0.2 < drafts / decoder.state_bytes(part) <= 0.25
        kept = slots * drafts + (slots + drafting.capacity.num_snapshots) * decoder.state_bytes(part)
        assert rank.state_bytes == kept
        assert rank.nbytes <= 0.85 * 48 * GIB


def test_models_without_states_keep_nothing_for_draft_tokens() -> None:
    deployment = make_deployment(replace(DEFAULT, drafts=True), configured(), machine(4, 4))
    assert {each.capacity.max_drafts for each in deployment.launches} == {0}


def test_a_draft_model_with_recurrent_layers_is_refused() -> None:
    options = replace(DEFAULT, drafts=True, draft=DraftOptions("draft", MODEL, DEFAULT_SETTINGS))
    assert complaint(options, machine(4, 4)).startswith("--draft-model needs a model without recurrent layers")
