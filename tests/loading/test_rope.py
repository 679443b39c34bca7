import numpy as np
import pytest
import torch
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.rope import read_rope, rope_from
from numaserve.workers.program.rope import UNROTATED, QueryScale, RopeConfig, frequencies, rope_tables
from transformers import Gemma3TextConfig, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.support.families.table import FAMILIES

SCALINGS: dict[str, dict[str, object]] = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "llama3 of Llama 4": {
        "rope_type": "llama3",
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 0.9,
        "mscale_all_dim": 0.4,
        "beta_fast": 24,
        "beta_slow": 2,
        "truncate": False,
    },
    "yarn with attention factor": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 512,
        "attention_factor": 1.3,
    },
    "longrope": {
        "short_factor": [1 + i / 9 for i in range(32)],
        "long_factor": [1 + i for i in range(32)],
        "original_max_position_embeddings": 4096,
    },
    "half rotated": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
}
POSITIONS = 131072


def reference(rope: dict[str, object], seq_len: int | None = None) -> tuple[np.ndarray, float]:
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=POSITIONS, rope_parameters=dict(rope)
    )
    inverse, factor = ROPE_INIT_FUNCTIONS[str(rope["rope_type"])](config, torch.device("cpu"), seq_len=seq_len)
    return inverse.double().numpy(), factor


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_frequencies_are_those_of_transformers(name: str, spelling: str) -> None:
    rope = {"rope_type": name, **SCALINGS[name]}
    expected, factor = reference({**rope, "rope_theta": 5e5}, seq_len=POSITIONS)
    values: dict[str, object] = {"max_position_embeddings": POSITIONS}
    if spelling == "rope_scaling":
        rope["type"] = rope.pop("rope_type")
        values |= {"rope_theta": 5e5, "rope_scaling": rope}
    else:
        values |= {"rope_parameters": {**rope, "rope_theta": 5e5}}
    inverse, attention_factor = frequencies(read_rope(Fields(values, "config.json"), 64), POSITIONS)
    np.testing.assert_allclose(inverse, expected, rtol=2e-6)
    assert attention_factor == pytest.approx(factor, rel=1e-9)


def test_longrope_uses_the_short_factors_when_the_context_served_is_short() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **SCALINGS["longrope"]}
    values: dict[str, object] = {"max_position_embeddings": POSITIONS, "rope_parameters": rope}
    config = read_rope(Fields(values, "config.json"), 64)
    np.testing.assert_allclose(frequencies(config, 4096)[0], reference(rope, 4096)[0], rtol=2e-6)
    np.testing.assert_allclose(frequencies(config, 4097)[0], reference(rope, 4097)[0], rtol=2e-6)


def test_tables_hold_cosine_and_sine_of_each_position() -> None:
    cos, sin = rope_tables(RopeConfig(theta=1e4, rotary_dim=8), 300)
    assert cos.shape == sin.shape == (300, 4)
    assert cos.dtype == sin.dtype == np.float32
    angle = 299 * 1e4 ** (-2 / 8)
    assert cos[299, 1] == np.float32(np.cos(angle))
    assert sin[299, 1] == np.float32(np.sin(angle))


@pytest.mark.parametrize(
    "rope",
    [RopeConfig(rotary_dim=24), RopeConfig(rotary_dim=24, distance=32, query_scale=QueryScale(0.1, 24)), UNROTATED],
)
def test_tables_take_the_memory_that_is_planned(rope: RopeConfig) -> None:
    cos, sin = rope_tables(rope, 300)
    factors = 0 if rope.query_scale is None else rope.query_scale.factors(300).nbytes
    assert rope.table_bytes(300) == cos.nbytes + sin.nbytes + factors


def test_what_is_not_rotated_is_turned_by_nothing_exactly() -> None:
    cos, sin = rope_tables(UNROTATED, 300)
    assert (cos == 1.0).all()
    assert (sin == 0.0).all()


@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
def test_each_kind_of_layer_of_gemma_3_has_its_own_rope(layer_type: str) -> None:
    config: PreTrainedConfig = FAMILIES["gemma3"].config()
    assert isinstance(config, Gemma3TextConfig)
    rope = config.rope_parameters[layer_type]
    fields = Fields({"max_position_embeddings": 512}, "config.json")
    inverse, _ = frequencies(rope_from(fields, Fields(rope, "rope"), config.head_dim, theta=1.0), 512)
    plain = rope["rope_theta"] ** -(np.arange(0, 32, 2) / 32)
    np.testing.assert_allclose(inverse, plain / rope.get("factor", 1.0), rtol=1e-12)


@pytest.mark.parametrize(("length", "shift"), [(3, 0), (3, 1), (8, 1)])
def test_queries_are_scaled_by_the_lengths_that_they_are_beyond(length: int, shift: int) -> None:
    factors = QueryScale(0.25, length, shift).factors(20)
    expected = [1 + 0.25 * np.log(1 + (position + shift) // length) for position in range(20)]
    np.testing.assert_allclose(factors, expected, rtol=1e-7)
    assert factors[0] == 1.0
