"""Promise: with a LoRA adapter as close to the merged model in fp32 as transformers in bf16, within a tenth."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numaserve.workers.interface.settings import WeightFormats

from tests.support import checkpoints
from tests.support.fake_quantization import play, rounded_to_int4, rounded_to_int8
from tests.support.lora import adapted_modules, random_adapter
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


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_ranks_are_as_close_to_fp32_as_transformers_in_bf16(name: str, tp: int, tmp_path: Path) -> None:
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
    found = served_scores(base, tp, texts, adapter=1, adapters=[folder], max_lora_rank=8)
    distance = Distance.between(found, reference)
    assert distance.mean_delta <= ALLOWED * yardstick.mean_delta
    assert distance.disagreements <= ALLOWED * yardstick.disagreements


@pytest.mark.parametrize(
    "formats", [WeightFormats("int8", "bf16"), WeightFormats("int4", "bf16")], ids=["int8", "int4"]
)
def test_on_a_quantized_base_the_reference_is_the_dequantized_base_with_the_adapter(
    formats: WeightFormats, tmp_path: Path
) -> None:
    model = checkpoints.random_model("llama-untied")
    base = checkpoints.save(model, tmp_path / "base")
    adapter = random_adapter(model, rank=8)
    folder = adapter.save(tmp_path / "adapter")
    texts = np.random.default_rng(0).integers(3, checkpoints.VOCAB, (3, CONTEXT - 11)).tolist()
    dequantized = copy.deepcopy(model)
    for _, module in adapted_modules(dequantized):
        module.weight.data = (rounded_to_int8 if formats.linear == "int8" else rounded_to_int4)(module.weight.data)
    narrow = adapter.applied(copy.deepcopy(dequantized).to(torch.bfloat16))
    reference = transformers_scores(adapter.applied(dequantized), texts)
    in_bf16 = Distance.between(transformers_scores(narrow, texts), reference).mean_delta
    # What activations in int8 lose too; with int4 they are bf16.
    played = transformers_scores(adapter.applied(play(copy.deepcopy(model), formats)), texts)
    allowed = math.hypot(Distance.between(played, reference).mean_delta, in_bf16)
    # On one rank: others may begin inside a group, whose scales then differ.
    found = served_scores(base, 1, texts, formats, adapter=1, adapters=[folder], max_lora_rank=8)
    assert Distance.between(found, reference).mean_delta <= ALLOWED * allowed
