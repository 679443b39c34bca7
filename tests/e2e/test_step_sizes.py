"""Promise: the same text and the same bits, whatever the size of steps that the scheduler chooses."""

import itertools
import random
from collections.abc import Iterator

import pytest
import transformers as hf
from numaserve.server.scheduler.step_size import StepSize
from numaserve.workers.interface.protocol import SamplingParams

from tests.support import checkpoints
from tests.support.plan_limits import plan_limits
from tests.support.rank_group import RankGroup
from tests.support.traffic import Request, Traffic, one_by_one

CONTEXT, PAGES = 3200, 101
LIMITS = {"num_pages": PAGES, "context_length": CONTEXT, "max_slots": 4, "max_logit_rows": 64}
VOCABULARY = checkpoints.VOCAB
PROMPT = random.Random(5).choices(range(VOCABULARY), k=3000)
REQUESTS = [
    Request(PROMPT[:length], SamplingParams(temperature=0.0, logprobs=3), 8) for length in (3000, 40, 700, 3000, 1500)
]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    """Two ranks of a mixture of experts, with room for steps of 2048 tokens."""
    config = hf.Qwen2MoeConfig(
        **checkpoints.sizes(
            64, 4, 2, 96, moe_intermediate_size=32, shared_expert_intermediate_size=40, max_position_embeddings=CONTEXT
        ),
        num_experts=8,
        num_experts_per_tok=2,
    )
    model = checkpoints.save(checkpoints.build(config), tmp_path_factory.mktemp("model"))
    with RankGroup(model, 2, max_step_tokens=2048, **LIMITS) as ranks:
        yield ranks


def traffic(group: RankGroup, most: int, least: int | None = None) -> Traffic:
    config = plan_limits(**LIMITS, max_step_tokens=most, least_step_tokens=least, enable_prefix_cache=False)
    return Traffic(group, config)


def prompt_steps(served: Traffic) -> list[int]:
    """The tokens of each step with the first prompt."""
    steps = (sum(seq.num_tokens for seq in plan.seqs) for plan in served.plans)
    return list(itertools.takewhile(lambda tokens: tokens > 1, steps))


def test_a_long_prompt_has_the_same_text_in_steps_of_every_size(
    group: RankGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long, chosen = traffic(group, 512), traffic(group, 2048), traffic(group, 2048, 512)
    expected = one_by_one(short, REQUESTS)
    assert all(len(answer.tokens) == 8 for answer in expected)
    assert expected == one_by_one(long, REQUESTS)
    assert (prompt_steps(short), prompt_steps(long)) == ([512] * 5 + [440], [2048, 952])
    for _ in range(2):  # the second time with what the scheduler has learnt
        assert one_by_one(chosen, REQUESTS) == expected
    assert prompt_steps(chosen)[0] == 512
    sizes = itertools.cycle([512, 1504, 608, 2048])
    monkeypatch.setattr(StepSize, "tokens", property(lambda _: next(sizes)))
    changing = traffic(group, 2048, 512)
    assert changing.serve(REQUESTS) == expected
    assert len({sum(seq.num_tokens for seq in plan.seqs) for plan in changing.plans}) > 4
