"""What a weight format loses is what its arithmetic loses in transformers too, and no more."""

import math
from pathlib import Path

import pytest
import torch
import transformers as hf
from numaserve.workers.interface.settings import WeightFormats

from tests.support.fake_quantization import play
from tests.support.families.table import WITH_EXPERTS
from tests.support.parity import Distance, Subject, make_subject, served_scores, transformers_scores

ALLOWED = 1.1
ALLOWED_OF_INT8 = 2  # the last bit of an activation in bf16 decides on a code of 8 bits
# Where weights have 8 bits too: a part of what the codes of activations lose. The error of a code has a variance of
# 1/12. If the largest of 96 normally distributed values has the code 127, bf16 moves a value by 1/18 of a code on
# average, and so changes one code of 18 by one. The root of 12 / 18 is that part.
OTHER_CODES = 0.8


DENSE = ("llama-untied", "qwen2", "gemma2", "gemma4", "gemma4-keys-only", "granite4-h", "lfm2", "phi3")
FORMATS = [WeightFormats(each, "bf16") for each in ("int8", "int4", "fp8")]
FORMATS.append(WeightFormats("int4", "bf16", activations="int8"))


@pytest.fixture(
    scope="module",
    params=[*DENSE, *WITH_EXPERTS],
)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return make_subject(request.param, tmp_path_factory.mktemp("model"))


@pytest.mark.spread("formats")
@pytest.mark.parametrize("formats", FORMATS, ids=lambda each: f"{each.linear}-{each.activations}")
@pytest.mark.parametrize("tp", [1, 2, 3])
def test_a_format_is_as_close_to_fp32_as_the_same_arithmetic_in_transformers(
    subject: Subject, formats: WeightFormats, tp: int
) -> None:
    model = hf.AutoModelForCausalLM.from_pretrained(subject.path, dtype=torch.float32, attn_implementation="eager")
    same_weights = transformers_scores(play(model.eval(), formats), subject.texts, formats)
    played = Distance.between(same_weights, subject.reference)
    scores = served_scores(subject.path, tp, subject.texts, formats)
    found = Distance.between(scores, subject.reference)
    assert found.mean_delta <= ALLOWED * played.mean_delta
    assert found.disagreements <= 1.2 * played.disagreements
    assert found.mean_delta > subject.yardstick.mean_delta, "the weights were not quantized"
    if tp == 1:  # ranks may begin inside a group, and have others then
        near = Distance.between(scores, same_weights)
        assert near.mean_delta <= allowed_between(formats, played.mean_delta, subject.yardstick.mean_delta)


def allowed_between(formats: WeightFormats, played: float, yardstick: float) -> float:
    """The distance of the same arithmetic on activations in bf16 and in fp32."""
    if formats.linear == "int8":
        return math.hypot(OTHER_CODES * played, yardstick)
    return (ALLOWED_OF_INT8 if formats.activations == "int8" else ALLOWED) * yardstick


def test_an_int8_head_loses_little_more(tmp_path: Path) -> None:
    subject = make_subject("llama-untied", tmp_path)
    without, with_head = (subject.distance(1, WeightFormats("int8", head)).mean_delta for head in ("bf16", "int8"))
    assert with_head != without
    assert with_head <= 1.5 * without
