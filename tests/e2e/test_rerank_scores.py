"""A score is the softmax over the logits of two tokens at the last position: by transformers, in fp32, and here."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numaserve.server.generation.classifier import sigmoid
from numaserve.workers.interface.protocol import SamplingParams, SeqPlan, SlotInit, StepPlan

from tests.support.checkpoints import VOCAB, random_model, save
from tests.support.rank_group import RankGroup

NO, YES = 17, 23


@pytest.mark.parametrize("tp", [1, 2])
def test_scores_are_those_of_transformers(tp: int, tmp_path: Path) -> None:
    model = random_model("qwen3")
    rng = np.random.default_rng(5)
    prompts = [rng.integers(3, VOCAB, length).tolist() for length in (3, 20, 32, 60)]
    init = SlotInit(SamplingParams(temperature=0.0, token_ids_logprob=[NO, YES]))
    plans = [
        SeqPlan(slot, 0, prompt, pages=[2 * slot, 2 * slot + 1], init=init, sample=True)
        for slot, prompt in enumerate(prompts)
    ]
    with RankGroup(save(model, tmp_path), tp) as group, torch.inference_mode():
        for prompt, found in zip(prompts, group.run(StepPlan(0, plans)).seqs, strict=True):
            logits = model(torch.tensor([prompt])).logits[0, -1, [NO, YES]].double()
            no, yes = found.token_logprobs
            assert sigmoid(yes - no) == pytest.approx(logits.softmax(0)[1].item(), abs=0.02)
