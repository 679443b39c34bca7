"""Embeddings are the last token's hidden state after the final norm, scaled: by transformers, in fp32, and here.

The same arithmetic is that of sentence-transformers with last-token pooling and its `Normalize`.
"""

import copy
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, SeqPlan, SlotInit, StepPlan

from tests.support.checkpoints import VOCAB, random_model, save
from tests.support.rank_group import RankGroup
from tests.support.same_bits import BATCH, FEW_PAGES, make_group, save_tiny_model, scheduler_config
from tests.support.traffic import Answer, Request, Traffic, one_by_one

LENGTHS = (1, 2, 31, 32, 33, 63, 64, 96, 130, 200, 257, 300)


def wanted(prompt: list[int]) -> Request:
    return Request(prompt, SamplingParams(), 0, pool=True)


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = np.random.default_rng(3)
    shared = rng.integers(3, VOCAB, 70).tolist()
    return [(shared + rng.integers(3, VOCAB, length).tolist())[:length] for length in lengths]


def cosines(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of each row with the other's."""
    return (some * others).sum(1) / (np.linalg.norm(some, axis=1) * np.linalg.norm(others, axis=1))


def by_transformers(model: hf.PreTrainedModel, texts: list[list[int]]) -> np.ndarray:
    with torch.inference_mode():
        states = [model.model(torch.tensor([text])).last_hidden_state[0, -1].double() for text in texts]
    return torch.stack(states).numpy()


def served(folder: Path, tp: int, texts: list[list[int]]) -> np.ndarray:
    config = scheduler_config(num_pages=64, context_length=128, max_slots=16)
    with RankGroup(folder, tp, context_length=128, pooled=True) as group:
        answers = Traffic(group, config).serve(map(wanted, texts))
    return np.stack([np.frombuffer(answer.embedding, "<f4") for answer in answers]).astype(np.float64)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "mistral", "gemma2"])
@pytest.mark.parametrize("saved_with_head", [False, True])
def test_embeddings_are_those_of_transformers(family: str, tp: int, saved_with_head: bool, tmp_path: Path) -> None:
    whole = random_model(family)
    folder = save(whole if saved_with_head else whole.model, tmp_path)
    texts = prompts((1, 5, 32, 50, 100))
    exact = by_transformers(whole, texts)
    distance = 1 - cosines(served(folder, tp, texts), exact)
    in_bf16 = 1 - cosines(by_transformers(copy.deepcopy(whole).to(torch.bfloat16), texts), exact)
    # A single text may be at either end of what rounding does: ours keeps sums in fp32, and is at 0.2 to 0.4 of it.
    assert distance.mean() <= 0.5 * in_bf16.mean()
    assert distance.max() <= in_bf16.max()


@pytest.mark.parametrize("family", ["qwen3", "llama-tied", "llama-untied"])
def test_they_are_as_close_to_fp32_as_those_of_transformers_in_bf16(family: str, tmp_path: Path) -> None:
    whole = random_model(family)
    texts = prompts(tuple(range(1, 101, 3)))
    exact, rounded = by_transformers(whole, texts), by_transformers(whole.to(torch.bfloat16), texts)
    found = cosines(served(save(random_model(family), tmp_path), 2, texts), exact)
    assert np.mean(1 - found) <= 1.1 * np.mean(1 - cosines(rounded, exact))


@pytest.fixture(scope="module")
def group(tp: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    with make_group(save_tiny_model("llama", tmp_path_factory.mktemp("llama")), tp, pooled=True) as group:
        yield group


@pytest.fixture(scope="module")
def alone(group: RankGroup) -> list[Answer]:
    answers = one_by_one(Traffic(group, scheduler_config()), [*map(wanted, prompts())])
    assert len({answer.embedding for answer in answers}) == len(LENGTHS)
    return answers


@pytest.mark.parametrize("tokens", [512, 64])
@pytest.mark.parametrize("ahead", [1, 2])
def test_a_batch_and_chunks_change_no_bit(group: RankGroup, alone: list[Answer], tokens: int, ahead: int) -> None:
    traffic = Traffic(group, scheduler_config(max_step_tokens=tokens), ahead=ahead)
    assert traffic.serve(map(wanted, prompts())) == alone
    assert 1 < max(len(plan.seqs) for plan in traffic.plans) <= BATCH


def test_the_prefix_cache_changes_no_bit_and_the_last_token_is_computed(group: RankGroup, alone: list[Answer]) -> None:
    traffic = Traffic(group, scheduler_config(enable_prefix_cache=True))
    assert traffic.serve(map(wanted, prompts())) == alone  # the shared beginning is found
    shared = traffic.scheduler.stats().prefix_hit_tokens
    assert shared > 0
    assert traffic.serve(map(wanted, prompts())) == alone
    found = traffic.scheduler.stats().prefix_hit_tokens - shared
    assert found == sum((length - 1) // 32 * 32 for length in LENGTHS)


def test_few_pages_change_no_bit(group: RankGroup, alone: list[Answer]) -> None:
    assert Traffic(group, scheduler_config(num_pages=FEW_PAGES), ahead=2).serve(map(wanted, prompts())) == alone


@pytest.mark.parametrize("ahead", [1, 2])
def test_whole_prompts_in_the_pages_of_one_step_change_no_bit(
    group: RankGroup, alone: list[Answer], ahead: int
) -> None:
    pages = -(-max(LENGTHS) // PAGE_SIZE)
    config = scheduler_config(whole_prompts=True, max_step_tokens=130, num_pages=pages)
    traffic = Traffic(group, config, ahead=ahead)
    assert traffic.serve(map(wanted, [*prompts(), *reversed(prompts())])) == [*alone, *reversed(alone)]
    steps = [[len(seq.tokens) for seq in plan.seqs] for plan in traffic.plans]
    assert [step for step in steps if sum(step) > 130] == [[200], [257], [300], [300], [257], [200]]
    assert max(map(len, steps)) > 1
    taken = [{page for seq in plan.seqs for page in seq.pages} for plan in traffic.plans]
    assert ahead == 1 or any(one & other for one, other in pairwise(taken))


def test_a_plan_that_wants_a_sample_is_refused_and_the_next_one_served(group: RankGroup, alone: list[Answer]) -> None:
    init = SlotInit(SamplingParams())
    group.send(StepPlan(0, [SeqPlan(slot=0, start=0, tokens=[1, 2], pages=[0], init=init, sample=True)]))
    assert {"rows of logits" in failure.message for failure in group.receive_failures()} == {True}
    assert Traffic(group, scheduler_config()).serve(map(wanted, prompts())) == alone
