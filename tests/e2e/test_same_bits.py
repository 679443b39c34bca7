"""Promise: the same bits whatever the load. Tokens and log-probabilities are compared exactly."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import transformers as hf
from numaserve.server.speculation import speculation
from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.settings import AS_PUBLISHED, BF16_WEIGHTS, KvCacheDtype, WeightFormats

from tests.support import checkpoints
from tests.support.demo import demo_model, needs_demo
from tests.support.played_drafts import played
from tests.support.rank_group import RankGroup
from tests.support.same_bits import (
    ADAPTED_MODEL,
    BATCH,
    DEMO_FEW_PAGES,
    DENSE_MODELS,
    EXPERT_MODELS,
    FEW_PAGES,
    FEWEST_PAGES,
    KIMI_MODEL,
    MXFP4_MODEL,
    QUANTIZED,
    TINY_MODELS,
    adapted,
    demo_requests,
    few_requests,
    make_group,
    random_requests,
    save_adapters,
    save_tiny_model,
    scheduler_config,
)
from tests.support.traffic import Answer, Request, Traffic, each_alone, one_by_one


@dataclass
class Subject:
    """A group of workers, requests, and the answers to each of them alone, in one chunk where it fits a step."""

    group: RankGroup
    requests: list[Request]
    alone: list[Answer]


# Each model runs on one instruction set.
pytestmark = pytest.mark.spread("isa")

Case = tuple[str, WeightFormats, KvCacheDtype]
CASES: list[Case] = [
    *((name, BF16_WEIGHTS, "bf16") for name in TINY_MODELS),
    *((name, each, "bf16") for name in ("llama", "qwen2_moe") for each in QUANTIZED),
    ("deepseek_v3", QUANTIZED[0], "bf16"),
    (MXFP4_MODEL, AS_PUBLISHED, "bf16"),
    (ADAPTED_MODEL, BF16_WEIGHTS, "bf16"),
    ("gemma2", BF16_WEIGHTS, "int8"),
    ("llama", BF16_WEIGHTS, "fp8_e4m3"),
]


@pytest.fixture(
    scope="module", params=CASES, ids=lambda case: f"{case[0]}*{case[1].linear}-{case[1].activations}*{case[2]}"
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What is served, as `make_group` wants it."""
    name, formats, kv_cache_dtype = request.param
    folder = tmp_path_factory.mktemp(name)
    model = save_tiny_model(name, folder / "base")
    adapters = save_adapters(folder) if name == ADAPTED_MODEL else []
    return {"model": model, "formats": formats, "kv_cache_dtype": kv_cache_dtype, "adapters": adapters}


@pytest.fixture(scope="module")
def subject(case: dict[str, object], isa: str, tp: int) -> Iterator[Subject]:
    requests = adapted(random_requests()) if case["adapters"] else random_requests()
    with make_group(tp=tp, isa=isa, **case) as group:
        assert group.isa == isa
        yield Subject(group, requests, each_alone(group, scheduler_config(), requests))


def test_a_batch_changes_no_bit(subject: Subject) -> None:
    traffic = Traffic(subject.group, scheduler_config())
    assert traffic.serve(subject.requests) == subject.alone
    assert max(len(plan.seqs) for plan in traffic.plans) == BATCH


def test_prefill_in_chunks_of_64_changes_no_bit(subject: Subject) -> None:
    traffic = Traffic(subject.group, scheduler_config(max_step_tokens=64))
    # Shorter prompts are one chunk alone too.
    longer = [index for index, request in enumerate(subject.requests) if len(request.prompt) > 64]
    alone = one_by_one(traffic, [subject.requests[index] for index in longer])
    assert alone == [subject.alone[index] for index in longer]
    assert traffic.serve(subject.requests) == subject.alone  # here chunks of many sizes, beside decodes


def test_prompts_that_are_cut_by_time_change_no_bit(subject: Subject) -> None:
    # Far less time than a step takes: beside decodes a page at a time, while there are none as much as fits.
    traffic = Traffic(subject.group, scheduler_config(target_itl_s=1e-6), ahead=2)
    assert traffic.serve(subject.requests) == subject.alone
    known = traffic.plans[2:]  # those before it were made when no step had been answered yet
    beside = [plan for plan in known if any(seq.from_previous for seq in plan.seqs)]
    assert max(len(seq.tokens) for plan in beside for seq in plan.seqs) <= PAGE_SIZE


def test_a_warm_prefix_cache_changes_no_bit(subject: Subject) -> None:
    traffic = Traffic(subject.group, scheduler_config(enable_prefix_cache=True))
    assert traffic.serve(subject.requests) == subject.alone
    before = traffic.scheduler.stats().prefix_hit_tokens
    assert traffic.serve(subject.requests) == subject.alone
    found = traffic.scheduler.stats().prefix_hit_tokens - before
    pages = [(len(request.prompt) - 1) // 32 * 32 for request in subject.requests if not request.prompt_logprobs]
    assert found == sum(pages)


def test_retraction_changes_no_bit(subject: Subject) -> None:
    traffic = Traffic(subject.group, scheduler_config(num_pages=FEW_PAGES))
    assert traffic.serve(subject.requests) == subject.alone
    assert traffic.scheduler.stats().retractions > 0


def test_a_step_of_nothing_changes_no_bit(subject: Subject) -> None:
    traffic = Traffic(subject.group, scheduler_config())
    for request, answer in zip(subject.requests[:4], subject.alone, strict=False):
        assert subject.group.run(traffic.scheduler.beat()).seqs == []
        traffic.scheduler.in_flight.clear()
        assert traffic.serve([request]) == [answer]


def test_planning_one_step_ahead_changes_no_bit(subject: Subject) -> None:
    traffic = Traffic(subject.group, scheduler_config(enable_prefix_cache=True, num_pages=FEW_PAGES), ahead=2)
    assert traffic.serve(subject.requests) == subject.alone
    assert any(seq.from_previous for plan in traffic.plans for seq in plan.seqs)


def test_drafts_change_no_bit(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "BLIND", 12)
    config = scheduler_config(enable_prefix_cache=True, num_pages=FEW_PAGES)
    drafters = played(subject.requests, subject.alone, wrong=7)
    traffic = Traffic(subject.group, config, ahead=2, drafters=drafters)
    assert traffic.serve(subject.requests) == subject.alone
    assert min(traffic.scheduler.drafted["played", right] for right in (True, False)) > 100
    assert max(max(plan.drafts or [0]) for plan in traffic.plans) > 8
    for request, answer in zip(subject.requests, subject.alone, strict=True):
        assert {len(each) for each in answer.named} == {len(request.sampling.token_ids_logprob)}


@needs_demo
@pytest.mark.parametrize("tp", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_demo_model_says_the_same_alone_in_a_batch_in_chunks_from_the_cache_and_retracted(tp: int) -> None:
    path = demo_model()
    with make_group(path, tp) as group:
        assert_same_answers(group, demo_requests(path), DEMO_FEW_PAGES)


@pytest.mark.spread("formats")
@pytest.mark.parametrize("formats", (BF16_WEIGHTS, *QUANTIZED), ids=lambda each: f"{each.linear}-{each.activations}")
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", EXPERT_MODELS)
def test_every_family_with_experts_says_the_same_in_every_format(
    name: str, formats: WeightFormats, tp: int, tmp_path: Path
) -> None:
    with make_group(save_tiny_model(name, tmp_path), tp, formats=formats) as group:
        assert_same_answers(group, few_requests(), FEWEST_PAGES)


@pytest.mark.parametrize(
    ("name", "formats"), [(MXFP4_MODEL, WeightFormats(activations="int8")), (KIMI_MODEL, AS_PUBLISHED)]
)
@pytest.mark.parametrize("tp", [1, 2])
def test_published_experts_say_the_same_in_any_company(
    name: str, formats: WeightFormats, tp: int, tmp_path: Path
) -> None:
    with make_group(save_tiny_model(name, tmp_path), tp, formats=formats) as group:
        assert_same_answers(group, few_requests(), FEWEST_PAGES)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", DENSE_MODELS)
def test_other_dense_families_say_the_same_in_any_company(name: str, tp: int, tmp_path: Path) -> None:
    with make_group(save_tiny_model(name, tmp_path), tp) as group:
        assert_same_answers(group, few_requests(), FEWEST_PAGES)


@pytest.mark.parametrize("formats", [BF16_WEIGHTS, QUANTIZED[0]], ids=["bf16", "int8"])
def test_whole_experts_on_each_rank_say_the_same_in_any_company(formats: WeightFormats, tmp_path: Path) -> None:
    model = save_tiny_model("qwen2_moe", tmp_path)
    with make_group(model, 2, formats=formats, expert_parallel=True) as group:
        assert_same_answers(group, random_requests(), FEW_PAGES)


def assert_same_answers(group: RankGroup, requests: list[Request], few_pages: int) -> None:
    """Alone, in a batch, in chunks, from the cache, and retracted."""
    alone = each_alone(group, scheduler_config(), requests)
    chunked = Traffic(group, scheduler_config(max_step_tokens=64))
    assert chunked.serve(requests) == alone
    cached = Traffic(group, scheduler_config(enable_prefix_cache=True))
    assert cached.serve(requests) == alone
    assert cached.serve(requests) == alone
    assert cached.scheduler.stats().prefix_hit_tokens > 0
    short = Traffic(group, scheduler_config(num_pages=few_pages), ahead=2)
    assert short.serve(requests) == alone
    assert short.scheduler.stats().retractions > 0


@pytest.mark.parametrize("tp", [1, 2])
def test_a_restart_with_another_number_of_threads_changes_no_bit(tp: int, tmp_path: Path) -> None:
    model = save_tiny_model("gemma2", tmp_path)
    answers = []
    for threads in (1, 2):
        with make_group(model, tp, threads=threads) as group:
            answers.append(Traffic(group, scheduler_config()).serve(random_requests()))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["qwen2_moe", "deepseek_v3"])
def test_two_nodes_of_43_threads_change_no_bit(name: str, tmp_path: Path) -> None:
    """A node of the largest hosts has 43 cores. These models have fewer panels than that."""
    model, answers = save_tiny_model(name, tmp_path), []
    # One request ends in each step: decodes of every batch size, in few steps. 86 threads that share cores are slow.
    requests = [replace(each, max_new_tokens=count) for count, each in enumerate(few_requests(), 2)]
    for threads in (1, 43):
        with make_group(model, 2, threads=threads) as group:
            answers.append(Traffic(group, scheduler_config()).serve(requests))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("formats", [BF16_WEIGHTS, QUANTIZED[0]])
def test_experts_whose_results_are_summed_at_once_change_no_bit(formats: WeightFormats, tmp_path: Path) -> None:
    """500 tokens with four experts each have results of 18 MB, which are not kept; chunks of 64 tokens keep theirs."""
    config = hf.Qwen2MoeConfig(
        **checkpoints.sizes(2304, 24, 2, 96, moe_intermediate_size=64, shared_expert_intermediate_size=72),
        num_experts=7,
        num_experts_per_tok=4,
    )
    model = checkpoints.save(checkpoints.build(config), tmp_path)
    request = replace(random_requests()[-2], max_new_tokens=2, prompt_logprobs=True)
    request = replace(request, prompt=(request.prompt * 2)[:500])
    with make_group(model, 1, threads=4, formats=formats) as group:
        whole, chunks = (
            Traffic(group, scheduler_config(max_step_tokens=tokens)).serve([request]) for tokens in (512, 64)
        )
    assert whole == chunks
