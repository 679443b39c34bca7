"""By default weights in groups are multiplied by what their own engine multiplies them by, or what measured rows choose
where the server quantizes them, to the last bit."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import transformers as hf
from numaserve.workers.interface.settings import AS_PUBLISHED, ActivationDtype, WeightFormats

from tests.support import checkpoints
from tests.support.parity import Texts, served_scores
from tests.support.published_checkpoints import save_published, small_llama

TEXTS: Texts = [np.random.default_rng(0).integers(3, checkpoints.VOCAB, 41).tolist()]


def _save(published: str, folder: Path) -> Path:
    if published in checkpoints.GGUF_BLOCKS:
        model = checkpoints.build(hf.LlamaConfig(**checkpoints.sizes(256, 4, 2, 512)))
        return checkpoints.save_gguf(model, folder / "model.gguf", published, expanded=False)
    return save_published(small_llama(), folder, published)


@pytest.mark.parametrize(
    ("published", "chosen"),
    [("Q4_0", "int8"), ("Q6_K", "int8"), ("Q8_0", "bf16"), ("MXFP4", "bf16"), ("awq", "bf16"), ("gptq", "bf16")],
)
def test_the_default_has_the_bits_of_what_it_chooses(published: str, chosen: ActivationDtype, tmp_path: Path) -> None:
    path = _save(published, tmp_path)
    forced = {
        each: served_scores(path, 1, TEXTS, WeightFormats(activations=each)) for each in get_args(ActivationDtype)
    }
    found = served_scores(path, 1, TEXTS, AS_PUBLISHED)
    np.testing.assert_array_equal(found.logprobs, forced.pop(chosen).logprobs)
    (other,) = forced.values()
    assert (found.logprobs != other.logprobs).any()


def test_what_the_server_quantizes_has_the_bits_of_int8_where_rows_choose_it(tmp_path: Path) -> None:
    path = checkpoints.save(small_llama(), tmp_path)
    chosen, forced = (
        served_scores(path, 1, TEXTS, WeightFormats("int4", "int4", **activations))
        for activations in ({"int8_activations": ("int4",)}, {"activations": "int8"})
    )
    np.testing.assert_array_equal(chosen.logprobs, forced.logprobs)
