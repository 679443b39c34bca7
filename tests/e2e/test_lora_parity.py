"""Promise: with a LoRA adapter as close to the merged model in fp32 as transformers in bf16, within a tenth."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import checkpoints
from tests.support.lora import random_adapter
from tests.support.parity import CONTEXT, Distance, served_scores, transformers_scores

ALLOWED = 1.1
# A dense model with biases, one whose MLP and heads are one tensor each, a latent one with shared experts, a hybrid of
# attention and gated delta layers, one with state spaces, and one with convolutions.
CASES = (
    "llama3-rope",
    "phi3",
    "deepseek_v3",
    "qwen3_next",
    *(pytest.param(each, marks=pytest.mark.slow) for each in ("nemotron_h", "lfm2")),
)


@pytest.mark.parametrize("name", CASES)
def test_one_to_three_ranks_are_as_close_to_fp32_as_transformers_in_bf16(name: str, tmp_path: Path) -> None:
    model = checkpoints.random_model(name)
    base = checkpoints.save(model, tmp_path / "base")
    adapter = random_adapter(model, rank=5, by_root=True)
    folder = adapter.save(tmp_path / "adapter")
    texts = np.random.default_rng(0).integers(3, checkpoints.VOCAB, (3, CONTEXT - 11)).tolist()
    wide, narrow = (
        adapter.applied(
            checkpoints.model_class(model.config).from_pretrained(base, dtype=dtype, attn_implementation="eager").eval()
        )
        for dtype in (torch.float32, torch.bfloat16)
    )
    reference = transformers_scores(wide, texts)
    yardstick = Distance.between(transformers_scores(narrow, texts), reference)
    for tp in (1, 2, 3):
        found = served_scores(base, tp, texts, adapter=1, adapters=[folder], max_lora_rank=8)
        distance = Distance.between(found, reference)
        assert distance.mean_delta <= ALLOWED * yardstick.mean_delta, tp
        assert distance.disagreements <= ALLOWED * yardstick.disagreements, tp
