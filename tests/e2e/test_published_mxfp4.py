"""gpt-oss as it is published is as close to what transformers makes of the same files as their arithmetic allows."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.workers.interface.settings import BF16_WEIGHTS, WeightFormats

from tests.support import checkpoints
from tests.support.fake_quantization import play_inputs
from tests.support.parity import Distance, served_scores, transformers_scores
from tests.support.published_mxfp4 import save_mxfp4, small_gpt_oss

ALLOWED = 1.15
POSITIONS = 400
TEXTS = [np.random.default_rng(0).integers(3, checkpoints.VOCAB, POSITIONS + 1).tolist()]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mxfp4(small_gpt_oss(), tmp_path_factory.mktemp("mxfp4"))


def dequantized(path: Path, dtype: torch.dtype = torch.float32) -> hf.PreTrainedModel:
    """What transformers reads."""
    return hf.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager").eval()


def test_mxfp4_is_as_close_as_the_arithmetic(saved: Path) -> None:
    reference = transformers_scores(dequantized(saved), TEXTS)
    in_bf16 = Distance.between(transformers_scores(dequantized(saved, torch.bfloat16), TEXTS), reference)
    rounded = Distance.between(transformers_scores(play_inputs(dequantized(saved), 32, head=False), TEXTS), reference)
    allowed = {"bf16": in_bf16.mean_delta, "int8": math.hypot(in_bf16.mean_delta, rounded.mean_delta)}
    for tp, expert_parallel in ((1, False), (2, False), (3, False), (2, True)):
        for activations in ("bf16", "int8"):
            formats = WeightFormats(activations=activations)
            found = Distance.between(
                served_scores(saved, tp, TEXTS, formats, expert_parallel=expert_parallel), reference
            )
            which = f"{tp=} {expert_parallel=} {activations=}"
            assert found.mean_delta <= ALLOWED * allowed[activations], which
            disagreements = max(in_bf16.disagreements, rounded.disagreements)
            assert found.disagreements <= disagreements + 4 * math.sqrt(disagreements), which


def test_packed_codes_lose_nothing(saved: Path) -> None:
    packed, expanded = (served_scores(saved, 2, TEXTS, each) for each in (WeightFormats(), BF16_WEIGHTS))
    # Scales are powers of two: what differs is the order of additions in fp32.
    assert np.abs(packed.logprobs - expanded.logprobs).mean() < 1e-3


def test_a_gguf_file_is_served(tmp_path: Path) -> None:
    # llama.cpp has the published limit built in.
    model = small_gpt_oss(swiglu_limit=7.0)
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", "Q8_0", expanded=False)
    reference = transformers_scores(model, TEXTS)
    in_bf16 = Distance.between(transformers_scores(copy.deepcopy(model).to(torch.bfloat16), TEXTS), reference)
    for tp, expert_parallel in ((1, False), (3, False), (2, True)):
        found = Distance.between(
            served_scores(path, tp, TEXTS, WeightFormats(activations="bf16"), expert_parallel=expert_parallel),
            reference,
        )
        assert found.mean_delta <= ALLOWED * in_bf16.mean_delta, f"{tp=} {expert_parallel=}"
