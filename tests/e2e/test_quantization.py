"""What a weight format loses is what its arithmetic loses in transformers too, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as hf
from numaserve.workers.settings import WeightFormats

from tests.support import checkpoints
from tests.support.fake_quantization import play
from tests.support.parity import Distance, make_subject, served_scores, transformers_scores

ALLOWED = 1.1
ALLOWED_OF_INT8 = 2  # the last bit of an activation in bf16 decides on a code of 8 bits


FORMATS = [WeightFormats(each, "bf16") for each in ("int8", "int4", "fp8")]
FORMATS.append(WeightFormats("int4", "bf16", activations="int8"))


@pytest.mark.parametrize("formats", FORMATS, ids=lambda each: f"{each.linear}-{each.activations}")
@pytest.mark.parametrize(
    "name", ["llama-untied", "qwen2", "gemma2", "phi3", *checkpoints.MOE_CASES, *checkpoints.LATENT_CASES]
)
def test_a_format_is_as_close_to_fp32_as_the_same_arithmetic_in_transformers(
    name: str, formats: WeightFormats, tmp_path: Path
) -> None:
    subject = make_subject(name, tmp_path)
    model = hf.AutoModelForCausalLM.from_pretrained(subject.path, dtype=torch.float32, attn_implementation="eager")
    same_weights = transformers_scores(play(model.eval(), formats), subject.texts)
    played = Distance.between(same_weights, subject.reference)
    for tp in (1, 2, 3):
        scores = served_scores(subject.path, tp, subject.texts, formats)
        found = Distance.between(scores, subject.reference)
        assert found.mean_delta <= ALLOWED * played.mean_delta, f"{tp=}"
        assert found.disagreements <= 1.2 * played.disagreements, f"{tp=}"
        assert found.mean_delta > subject.yardstick.mean_delta, f"{tp=}: the weights were not quantized"
        if tp == 1:  # ranks may begin inside a group, and have others then
            in_int8 = "int8" in (formats.linear, formats.activations)
            allowed = ALLOWED_OF_INT8 if in_int8 else ALLOWED
            near = Distance.between(scores, same_weights)
            assert near.mean_delta <= allowed * subject.yardstick.mean_delta


def test_an_int8_head_loses_little_more(tmp_path: Path) -> None:
    subject = make_subject("llama-untied", tmp_path)
    without, with_head = (subject.distance(1, WeightFormats("int8", head)).mean_delta for head in ("bf16", "int8"))
    assert with_head != without
    assert with_head <= 1.5 * without
