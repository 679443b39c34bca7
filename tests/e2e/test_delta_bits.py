"""Models with recurrent layers: the same bits wherever a prompt is cut, in every format of weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams, SeqPlan, SlotInit, StepPlan, TokenLogprobs
from numaserve.workers.interface.settings import BF16_WEIGHTS, WeightFormats

from tests.support.checkpoints import VOCAB
from tests.support.rank_group import RankGroup
from tests.support.same_bits import (
    FEWEST_PAGES,
    QUANTIZED,
    few_requests,
    make_group,
    save_tiny_model,
    scheduler_config,
)
from tests.support.traffic import Traffic, each_alone

FAMILIES = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "lfm2", "lfm2_moe", "granite_hybrid", "nemotron_h", "kimi_linear")
SNAPSHOTS = 6
PROMPT = np.random.default_rng(1).integers(3, VOCAB, 65).tolist()  # as many scores as a step has rows of logits
PAGES = list(range(-(-len(PROMPT) // PAGE_SIZE)))


@pytest.fixture(scope="module", params=[1, 2, 3])
def tp(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def group(tp: int, isa: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    model = save_tiny_model("qwen3_5", tmp_path_factory.mktemp("model"))
    with make_group(model, tp, isa=isa) as group:
        yield group


def scores(group: RankGroup, *cuts: int) -> list[TokenLogprobs]:
    """The log-probabilities of a prompt that is computed in parts."""
    init, found = SlotInit(SamplingParams(temperature=0.0, logprobs=3)), []
    for step, (begin, end) in enumerate(zip((0, *cuts), (*cuts, len(PROMPT) - 1), strict=True)):
        first: dict[str, Any] = {"pages": PAGES, "init": init} if begin == 0 else {}
        plan = SeqPlan(0, begin, PROMPT[begin:end], prompt_logprobs=PROMPT[begin + 1 : end + 1], **first)
        found += group.run(StepPlan(step, [plan])).seqs[0].prompt_logprobs
    return found


def test_a_cut_at_any_residue_of_64_changes_no_bit(group: RankGroup) -> None:
    whole = scores(group)
    assert len(whole) == len(PROMPT) - 1
    for cut in range(1, 64):
        assert scores(group, cut) == whole, cut


def test_one_token_after_the_other_changes_no_bit(group: RankGroup) -> None:
    assert scores(group, *range(1, len(PROMPT) - 1)) == scores(group)


@pytest.mark.spread("formats")
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("formats", (BF16_WEIGHTS, *QUANTIZED), ids=lambda each: f"{each.linear}-{each.activations}")
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_says_the_same_in_every_format(name: str, formats: WeightFormats, tp: int, tmp_path: Path) -> None:
    requests, states = few_requests(), {"num_snapshots": SNAPSHOTS}
    with make_group(save_tiny_model(name, tmp_path), tp, formats=formats, **states) as group:
        alone = each_alone(group, scheduler_config(), requests)
        assert Traffic(group, scheduler_config(max_step_tokens=64)).serve(requests) == alone
        cached = Traffic(group, scheduler_config(enable_prefix_cache=True, num_pages=FEWEST_PAGES, **states), ahead=2)
        assert cached.serve(requests) == alone
        assert cached.scheduler.stats().retractions > 0


@pytest.mark.parametrize("tp", [1, 2])
def test_a_restart_with_another_number_of_threads_changes_no_bit(tp: int, tmp_path: Path) -> None:
    model, answers = save_tiny_model("qwen3_5", tmp_path), []
    for threads in (1, 2):
        with make_group(model, tp, threads=threads) as group:
            answers.append(Traffic(group, scheduler_config()).serve(few_requests()))
    assert answers[0] == answers[1]
