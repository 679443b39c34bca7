"""The steps and the memory of models that compute each prompt in one step."""

from dataclasses import replace

import pytest
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, ModelSettings
from numaserve.workers.planning.deployment import Deployment, make_deployment
from numaserve.workers.planning.needs import step_tokens
from numaserve.workers.planning.options import DraftOptions

from tests.support.configured import bidirectional, configured
from tests.support.machines import GIB, OPTIONS, machine

POOLED = replace(OPTIONS, settings=ModelSettings(pooled=True))
LONG = bidirectional(max_position_embeddings=8192)


def deployed(model_context: int = 8192, **options: object) -> Deployment:
    changed = replace(POOLED, **options)  # type: ignore[arg-type]
    return make_deployment(changed, bidirectional(max_position_embeddings=model_context), machine(8))


def test_a_step_of_the_workers_holds_the_longest_prompt_and_several_share_a_chunk() -> None:
    deployment = deployed()
    assert {launch.capacity.max_step_tokens for launch in deployment.launches} == {8192}
    assert (deployment.shared_step_tokens, deployment.whole_prompts) == (512, True)
    shorter = deployed(context_length=1000)
    assert {launch.capacity.max_step_tokens for launch in shorter.launches} == {1000}
    short = deployed(model_context=128)
    assert {launch.capacity.max_step_tokens for launch in short.launches} == {512}
    decoder = make_deployment(POOLED, configured(), machine(8))
    assert (decoder.launches[0].capacity.max_step_tokens, decoder.whole_prompts) == (512, False)


def test_scratch_is_that_of_the_longest_step() -> None:
    long, short = deployed(), deployed(context_length=512)
    as_wide = make_deployment(replace(POOLED, max_step_tokens=8192), configured(), machine(8))
    assert long.ranks[0].scratch_bytes == as_wide.ranks[0].scratch_bytes
    assert short.ranks[0].scratch_bytes < long.ranks[0].scratch_bytes - 8192 * 576 * 4
    two = replace(POOLED, tp=2)
    ring, chunk = (
        make_deployment(two, model, machine(4, 4)).ring_slot_bytes
        for model in (LONG, configured(max_position_embeddings=8192))
    )
    assert ring == 16 * chunk


@pytest.mark.parametrize(
    ("context", "tokens", "slots", "pages"),
    [
        (8192, 512, 64, 256),  # one prompt of the longest kind
        (512, 512, 64, 78),  # 63 prompts that begin a second page, and one more
        (512, 512, 1, 16),
        (512, 2048, 8, 71),
        (512, 16, 64, 64),  # a token for each slot
    ],
)
def test_the_kv_cache_has_the_pages_of_one_step(context: int, tokens: int, slots: int, pages: int) -> None:
    deployment = deployed(context, max_step_tokens=tokens, max_running_requests=slots)
    assert deployment.capacity.num_pages == pages + 1
    assert deployment.ranks[0].kv_bytes == deployment.capacity.num_pages * configured().decoder.page_bytes(
        configured().partition([8]).ranks[0], "bf16"
    )


@pytest.mark.parametrize("slots", [1, 3, 8, 64])
@pytest.mark.parametrize("tokens", [16, 100, 512])
def test_no_step_needs_more_pages_than_there_are(slots: int, tokens: int) -> None:
    deployment = deployed(256, max_step_tokens=tokens, max_running_requests=slots)
    shared = deployment.shared_step_tokens
    # The most pages: as many prompts as possible end just after the first token of a page.
    most, left = 0, shared
    for others in reversed(range(min(slots, shared))):
        length = max(each for each in range(1, left - others + 1) if each == 1 or each % PAGE_SIZE == 1 or not others)
        most, left = most + -(-min(length, 256) // PAGE_SIZE), left - length
    assert most < deployment.capacity.num_pages


def test_nothing_is_reused_and_windows_have_no_tables_of_their_own() -> None:
    sliding = {"sliding_window": 512, "max_position_embeddings": 8192}
    deployment = make_deployment(POOLED, bidirectional("MistralForCausalLM", **sliding), machine(8))
    as_decoder = make_deployment(POOLED, configured("MistralForCausalLM", **sliding), machine(8))
    assert (deployment.reuses_prefixes, deployment.window_tables) == (False, ())
    assert as_decoder.reuses_prefixes and as_decoder.window_tables
    assert deployment.notes == ()


def test_the_scheduler_takes_what_is_deployed() -> None:
    deployment = deployed()
    config = SchedulerConfig(
        deployment.capacity,
        deployment.shared_step_tokens,
        enable_prefix_cache=deployment.reuses_prefixes,
        whole_prompts=deployment.whole_prompts,
    )
    assert config.max_sequence_tokens == 8192


def test_a_kv_cache_of_a_given_size_bounds_the_context_and_is_no_larger_than_a_step() -> None:
    assert deployed(kv_cache_gib=20.0).capacity.num_pages == 257
    page = configured().decoder.page_bytes(configured().partition([8]).ranks[0], "bf16")
    assert deployed(kv_cache_gib=101 * page / GIB).capacity.context_length == 100 * PAGE_SIZE
    with pytest.raises(OperatorError, match="the KV cache holds 3200 tokens, but a sequence of 8192 tokens needs"):
        deployed(kv_cache_gib=101 * page / GIB, context_length=8192)


def test_too_long_a_step_for_the_memory_is_refused_with_a_context_that_fits() -> None:
    huge = bidirectional(max_position_embeddings=1 << 20)
    with pytest.raises(OperatorError, match=r"too little memory.*: set --context-length to at most \d+") as refused:
        make_deployment(POOLED, huge, machine(8, free_gib=4))
    context = int(str(refused.value).partition("to at most ")[2].partition(",")[0].partition(" ")[0])
    assert make_deployment(replace(POOLED, context_length=context), huge, machine(8, free_gib=4))
    with pytest.raises(OperatorError, match=r"set --context-length to at most \d+$") as refused:
        make_deployment(replace(POOLED, context_length=2 * context), huge, machine(8, free_gib=4))
    assert str(refused.value).count("--context-length") == 1


def test_a_default_context_that_the_kv_cache_shortens_shortens_the_step() -> None:
    page = configured().decoder.page_bytes(configured().partition([8]).ranks[0], "bf16")
    deployment = deployed(kv_cache_gib=101 * page / GIB)
    assert deployment.launches[0].capacity.max_step_tokens == deployment.capacity.context_length == 3200
    assert step_tokens(POOLED, LONG) == 8192


def test_an_encoder_is_no_draft_model() -> None:
    options = replace(OPTIONS, drafts=True, draft=DraftOptions("draft", LONG, DEFAULT_SETTINGS))
    with pytest.raises(OperatorError, match=r"^--draft-model needs a model that generates text"):
        make_deployment(options, configured(), machine(8))
