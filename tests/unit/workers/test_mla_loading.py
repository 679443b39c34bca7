"""The weights of multi-head latent attention: what a checkpoint has to hold, and what each rank packs of it."""

from __future__ import annotations

from pathlib import Path

import checkpoints
import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.config import load_model_config
from numaserve.workers.protocol import BF16_WEIGHTS, WeightFormat, WeightFormats
from numaserve.workers.weights import loader
from numaserve.workers.weights.sharding import make_shard, weight_bytes
from numaserve.workers.weights.weights import MlaWeights, Weights
from published_checkpoints import save_published
from safetensors.torch import load_file
from test_loader import edit_tensors
from test_quantized_loading import assert_same_logits


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of every family."""
    return {
        case: checkpoints.save(checkpoints.random_model(case), tmp_path_factory.mktemp(case))
        for case in checkpoints.LATENT_CASES
    }


def load(path: Path, team: Team, *, shares: list[int], rank: int = 0, formats: WeightFormats = BF16_WEIGHTS) -> Weights:
    """A rank's weights; what the plan counts is what they take."""
    config = load_model_config(path)
    source, shard, done = loader.open_source(path, config), make_shard(config, shares, rank), []
    weights = loader.load_weights(source, config, shard, team, done.append, positions=64, formats=formats)
    assert np.diff([0, *done]).tolist() == [matrix.nbytes for matrix in weights.matrices]
    assert done[-1] == weight_bytes(config, shares, rank, formats)
    return weights


def latent_of(weights: Weights, layer: int = 0) -> MlaWeights:
    found = weights.layers[layer].qkv
    assert isinstance(found, MlaWeights)
    return found


@pytest.mark.parametrize("case", checkpoints.LATENT_CASES)
@pytest.mark.parametrize("format", ["bf16", "int8", "int4", "fp8"])
def test_every_format_takes_the_memory_that_is_planned(
    case: str, format: WeightFormat, saved: dict[str, Path], team: Team
) -> None:
    for rank in range(3):
        weights = load(saved[case], team, shares=[3, 2, 1], rank=rank, formats=WeightFormats(format, "bf16"))
        latent = latent_of(weights)
        assert {latent.q.format, latent.kv_a.format} == {format}
        assert {latent.w_uk.format, latent.w_uv.format} == {"bf16"}


def test_heads_are_divided_and_what_makes_latents_is_whole_on_every_rank(saved: dict[str, Path], team: Team) -> None:
    tensors = load_file(saved["deepseek_v3"] / "model.safetensors")
    attention = {
        name.removeprefix("model.layers.1.self_attn.").removesuffix(".weight"): values.float().numpy()
        for name, values in tensors.items()
        if name.startswith("model.layers.1.self_attn.")
    }
    heads, nope, rope, value, latent = 3, 32, 32, 64, 96
    parts = [latent_of(load(saved["deepseek_v3"], team, shares=[2, 1], rank=rank), 1) for rank in range(2)]
    halves = [*range(0, rope, 2), *range(1, rope, 2)]
    for part in parts:
        assert part.q_a is not None
        np.testing.assert_array_equal(part.q_a.to_numpy(), attention["q_a_proj"])
        rows = [*range(latent), *(latent + i for i in halves)]
        np.testing.assert_array_equal(part.kv_a.to_numpy(), attention["kv_a_proj_with_mqa"][rows])
    queries = attention["q_b_proj"].reshape(heads, nope + rope, -1)[:, [*range(nope), *(nope + i for i in halves)]]
    together = np.concatenate([part.q.to_numpy() for part in parts])
    np.testing.assert_array_equal(together, queries.reshape(together.shape))
    keys, values = np.split(attention["kv_b_proj"].reshape(heads, nope + value, latent), [nope], axis=1)
    w_uk = np.concatenate([part.w_uk.to_numpy() for part in parts]).reshape(heads, latent, nope)
    np.testing.assert_array_equal(w_uk, keys.swapaxes(1, 2))
    w_uv = np.concatenate([part.w_uv.to_numpy() for part in parts])
    np.testing.assert_array_equal(w_uv, values.reshape(w_uv.shape))
    assert [part.q.n // (nope + rope) for part in parts] == [2, 1]


@pytest.mark.usefixtures("numpy_vectors")
@pytest.mark.parametrize("layout", ["gptq", "awq", "w8a8", "fp8 blocks"])
def test_a_published_checkpoint_is_kept_as_it_is_but_for_what_is_absorbed(
    layout: str, tmp_path: Path, team: Team
) -> None:
    model = small_deepseek()
    path = save_published(model, tmp_path, layout)
    native = load_model_config(path).stored["layers.1.self_attn.q_b_proj"].native
    for layer in model.model.layers:
        expanded = layer.self_attn.kv_b_proj.weight
        expanded.data = expanded.data.bfloat16().float()
    for tp in (1, 3):
        for weights in assert_same_logits(path, model, tp, team):
            latent = latent_of(weights, 1)
            assert {matrix.format for matrix in latent.matrices[:3]} == {native}
            assert {matrix.format for matrix in latent.matrices[3:]} == {"bf16"}


def small_deepseek() -> hf.PreTrainedModel:
    """Its widths are multiples of the groups."""
    sizes = checkpoints.sizes(384, 3, 3, 256, q_lora_rank=128, kv_lora_rank=128, n_routed_experts=8)
    dims = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    experts = {"moe_intermediate_size": 128, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
    return checkpoints.build(hf.DeepseekV3Config(**sizes, **dims, **experts, first_k_dense_replace=1))


def test_a_rank_without_heads_packs_none(saved: dict[str, Path], team: Team) -> None:
    weights = load(saved["deepseek_v3"], team, shares=[1] * 5, rank=4)
    assert not weights.shard.q_heads
    latent = latent_of(weights)
    assert (latent.q.n, latent.w_uk.n, latent.w_uv.n, latent.kv_a.n) == (0, 0, 0, 128)


def test_layers_for_predicting_several_tokens_are_left_out(tmp_path: Path, team: Team) -> None:
    folder = checkpoints.save(checkpoints.random_model("deepseek_v3"), tmp_path)
    edit_tensors(folder, lambda t: t | {"model.layers.3.eh_proj.weight": torch.ones(96, 192)})
    assert len(load(folder, team, shares=[1]).layers) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("q_a_layernorm", "lacks model.layers.0.self_attn.q_a_layernorm.weight"),
        ("kv_a_proj_with_mqa", "lacks model.layers.0.self_attn.kv_a_proj_with_mqa.weight"),
        ("kv_b_proj", "lacks model.layers.0.self_attn.kv_b_proj.weight"),
    ],
)
def test_a_checkpoint_without_a_projection_is_refused(name: str, message: str, tmp_path: Path, team: Team) -> None:
    folder = checkpoints.save(checkpoints.random_model("deepseek_v3"), tmp_path)
    edit_tensors(folder, lambda t: {key: value for key, value in t.items() if f".{name}." not in key})
    with pytest.raises(OperatorError, match=message):
        load(folder, team, shares=[1])
