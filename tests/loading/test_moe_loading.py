"""The weights of mixtures of experts: what a checkpoint has to hold, and what each rank packs of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.kernels import PackedMatrix, Team
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.config.load import load_model_config
from numaserve.workers.settings import AS_PUBLISHED, BF16_WEIGHTS, ModelSettings, WeightFormat, WeightFormats
from numaserve.workers.weights import loader
from numaserve.workers.weights.checkpoint import open_source
from numaserve.workers.weights.sharding import make_shard, weight_bytes
from numaserve.workers.weights.weights import DenseMlp, MoeWeights, Weights
from safetensors.torch import load_file
from test_loader import edit_tensors
from test_quantized_loading import assert_same_logits

from tests.support import checkpoints
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import edit_config, save_published, small_qwen2_moe

pytestmark = pytest.mark.usefixtures("numpy_vectors")

QUANTIZED: list[WeightFormat] = ["int8", "int4", "fp8"]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of every family."""
    return {
        case: checkpoints.save(checkpoints.random_model(case), tmp_path_factory.mktemp(case))
        for case in checkpoints.MOE_CASES
    }


def load(path: Path, team: Team, *, tp: int = 1, rank: int = 0, formats: WeightFormats = AS_PUBLISHED) -> Weights:
    """A rank's weights; what the plan counts is what they take."""
    config = load_model_config(path)
    shares, done = list(range(tp + 1, 1, -1)), []
    weights = loader.load_weights(
        open_source(path, config),
        config,
        make_shard(config, shares, rank),
        team,
        done.append,
        positions=64,
        formats=formats,
    )
    planned = weight_bytes(config, shares, rank, ModelSettings(formats=formats))
    assert done[-1] == planned == sum(matrix.nbytes for matrix in weights.matrices)
    return weights


def experts_of(weights: Weights, layer: int = 0) -> MoeWeights:
    mlp = weights.layers[layer].mlp
    assert isinstance(mlp, MoeWeights)
    return mlp


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("format", ["bf16", *QUANTIZED])
@pytest.mark.parametrize("case", checkpoints.MOE_CASES)
def test_every_format_takes_the_memory_that_is_planned(
    case: str, format: WeightFormat, tp: int, saved: dict[str, Path], team: Team
) -> None:
    for rank in range(tp):
        weights = load(saved[case], team, tp=tp, rank=rank, formats=WeightFormats(format, "bf16"))
        mlp = experts_of(weights)
        assert mlp.router.format == "bf16"
        assert {matrix.format for matrix in mlp.matrices[1:]} == {format}


def test_the_ranks_together_hold_every_expert_once(saved: dict[str, Path], team: Team) -> None:
    path = saved["qwen2_moe"]
    tensors, whole = load_file(path / "model.safetensors"), load_model_config(path).moe
    assert whole is not None
    parts = [experts_of(load(path, team, tp=2, rank=rank, formats=BF16_WEIGHTS), 2) for rank in range(2)]
    for expert in range(whole.num_experts):
        at = f"model.layers.2.mlp.experts.{expert}."
        down = np.concatenate([part.down[expert].to_numpy() for part in parts], axis=1)
        np.testing.assert_array_equal(down, tensors[f"{at}down_proj.weight"].float().numpy())
        for half, name in enumerate(("gate_proj", "up_proj")):
            rows = [half_of(part.gate_up[expert], half)[: part.down[expert].k] for part in parts]
            np.testing.assert_array_equal(np.concatenate(rows), tensors[f"{at}{name}.weight"].float().numpy())
    for part in parts:
        router = np.concatenate(
            [tensors[f"model.layers.2.mlp.{name}.weight"].float().numpy() for name in ("gate", "shared_expert_gate")]
        )
        np.testing.assert_array_equal(part.router.to_numpy(), router)
        assert part.experts == range(whole.num_experts)
        assert part.shared is not None
        assert part.correction_bias is None
    assert sum(part.shared.down.k for part in parts if part.shared) == whole.shared_intermediate_size


def half_of(gate_up: PackedMatrix, half: int) -> np.ndarray:
    return gate_up.to_numpy().reshape(-1, 2, 16, gate_up.k)[:, half].reshape(-1, gate_up.k)


def test_layers_without_experts_are_dense(saved: dict[str, Path], team: Team) -> None:
    layers = load(saved["qwen2_moe"], team).layers
    assert [type(layer.mlp) for layer in layers] == [MoeWeights, DenseMlp, MoeWeights]


def test_matrices_are_listed_in_the_order_in_which_they_are_loaded(saved: dict[str, Path], team: Team) -> None:
    config = load_model_config(saved["qwen2_moe"])
    done: list[int] = []
    weights = loader.load_weights(
        open_source(saved["qwen2_moe"], config),
        config,
        make_shard(config, [1], 0),
        team,
        done.append,
        positions=64,
    )
    assert np.diff([0, *done]).tolist() == [matrix.nbytes for matrix in weights.matrices]


def test_a_rank_without_columns_of_an_expert_holds_nothing_of_it(saved: dict[str, Path], team: Team) -> None:
    config = load_model_config(saved["qwen3_moe"])  # experts of three tiles
    shares = [1] * 5
    empty = [rank for rank in range(5) if not make_shard(config, shares, rank).expert_intermediate]
    assert empty
    source = open_source(saved["qwen3_moe"], config)
    for rank in empty:
        shard, done = make_shard(config, shares, rank), []
        mlp = experts_of(loader.load_weights(source, config, shard, team, done.append, positions=64))
        assert {(matrix.n, matrix.k) for matrix in mlp.down} == {(160, 0)}
        assert done[-1] == weight_bytes(config, shares, rank)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda t: {k: v for k, v in t.items() if "layers.2.mlp.experts.6.up" not in k},
            "lacks model.layers.2.mlp.experts.6.up_proj.weight",
        ),
        (lambda t: {k: v for k, v in t.items() if "layers.0.mlp.gate." not in k}, "lacks model.layers.0.mlp.gate.w"),
        (lambda t: {k: v for k, v in t.items() if "shared_expert_gate" not in k}, "shared_expert_gate.weight"),
        (
            lambda t: {k: v for k, v in t.items() if "shared_expert.down" not in k},
            "lacks model.layers.0.mlp.shared_expert.down_proj.weight",
        ),
        (lambda t: t | {"model.layers.0.mlp.experts.7.up_proj.weight": torch.ones(72, 128)}, "experts.7.up_proj"),
        (lambda t: t | {"model.layers.1.mlp.experts.0.up_proj.weight": torch.ones(72, 128)}, "layers.1.mlp.experts.0"),
        (lambda t: t | {"model.layers.0.mlp.gate.e_score_correction_bias": torch.ones(7)}, "e_score_correction_bias"),
        (lambda t: t | {"model.layers.0.mlp.up_proj.weight": torch.ones(160, 128)}, "layers.0.mlp.up_proj"),
        (
            lambda t: t | {"model.layers.0.mlp.gate.weight": torch.ones(8, 128)},
            "shape [8, 128], the configuration asks for [7, 128]",
        ),
        (
            lambda t: t | {"model.layers.2.mlp.experts.3.down_proj.weight": torch.ones(72, 128)},
            "experts.3.down_proj.weight has shape [72, 128], the configuration asks for [128, 72]",
        ),
        (
            lambda t: t | {"model.layers.0.mlp.shared_expert_gate.weight": torch.ones(128)},
            "shape [128], the configuration asks for [1, 128]",
        ),
    ],
)
def test_experts_that_do_not_fit_their_configuration_are_one_clear_line(
    edit: Callable[[Tensors], Tensors], message: str, tmp_path: Path, team: Team
) -> None:
    folder = checkpoints.save(checkpoints.random_model("qwen2_moe"), tmp_path)
    edit_tensors(folder, edit)
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load(folder, team)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("layout", ["gptq", "gptq act-order", "awq", "w4a16 asymmetric", "w8a8", "fp8 blocks"])
def test_published_experts_are_kept_as_they_are_on_any_number_of_ranks(layout: str, tmp_path: Path, team: Team) -> None:
    model = small_qwen2_moe()
    path = save_published(model, tmp_path, layout)
    native = load_model_config(path).stored["layers.0.mlp.experts.0.up_proj"].native
    for tp in (1, 3):
        for weights in assert_same_logits(path, model, tp, team):
            for layer in range(2):
                router, *experts = experts_of(weights, layer).matrices
                assert router.format == "bf16"
                assert {matrix.format for matrix in experts} == {native}


def test_experts_that_are_stored_differently_take_the_format_that_holds_all(tmp_path: Path, team: Team) -> None:
    model = small_qwen2_moe()
    path = save_published(model, tmp_path, "awq", skip=lambda name: "layers.1.mlp.experts.4.down_proj" in name)
    expanded = model.model.layers[1].mlp.experts.down_proj
    expanded.data = expanded.data.bfloat16().float()
    skipped = {"modules_to_not_convert": ["layers.1.mlp.experts.4.down_proj"]}
    edit_config(path, quantization_config=LAYOUTS["awq"].config | skipped)
    (weights,) = assert_same_logits(path, model, 1, team)
    assert {matrix.format for matrix in experts_of(weights, 0).down} == {"int4"}
    shared = experts_of(weights, 1).shared
    assert shared is not None
    assert {matrix.format for matrix in experts_of(weights, 1).down} == {"bf16"}
    assert {matrix.format for matrix in (*experts_of(weights, 1).gate_up, *shared.matrices)} == {"int4"}


@pytest.mark.parametrize("skipped", ["experts", "shared_expert"])
@pytest.mark.parametrize("layout", ["awq", "w4a16", "w8a8", "fp8 blocks"])
def test_the_shared_expert_and_the_routed_ones_keep_a_format_each(
    layout: str, skipped: str, tmp_path: Path, team: Team
) -> None:
    model = small_qwen2_moe()
    path = save_published(model, tmp_path, layout, skip=lambda name: f".{skipped}." in name)
    modules = [f"model.layers.{layer}.mlp.{skipped}" for layer in range(2)]
    ignored = {"modules_to_not_convert": modules, "ignore": ["lm_head", rf"re:.*\.{skipped}\."]}
    edit_config(path, quantization_config=LAYOUTS[layout].config | ignored)
    for weights in assert_same_logits(path, model, 2, team):
        mlp = experts_of(weights)
        assert mlp.shared is not None
        routed = {matrix.format for matrix in (*mlp.gate_up, *mlp.down)}
        shared = {matrix.format for matrix in mlp.shared.matrices}
        native = LAYOUTS[layout].native
        assert (routed, shared) == (({"bf16"}, {native}) if skipped == "experts" else ({native}, {"bf16"}))


GGUF_MODELS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "mixtral": lambda: hf.MixtralConfig(
        **checkpoints.sizes(128, 4, 2, 96, num_local_experts=5, num_experts_per_tok=2, rms_norm_eps=1e-6)
    ),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(
        **checkpoints.sizes(128, 4, 2, 160, moe_intermediate_size=96, shared_expert_intermediate_size=224),
        num_experts=7,
        num_experts_per_tok=3,
    ),
    "qwen3_moe": checkpoints.MOE_CASES["qwen3_moe"],
}


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_0", "Q5_1"])
@pytest.mark.parametrize("family", GGUF_MODELS)
def test_the_experts_of_a_gguf_file_stay_quantised(family: str, kind: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(GGUF_MODELS[family]())
    is_plain = kind in {"F32", "BF16"}
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, embedding="BF16", expanded=is_plain)
    config = load_model_config(path)
    folder = load_model_config(checkpoints.save(model, tmp_path / "folder"))
    # The file has eps in single precision.
    assert config == replace(folder, stored=config.stored, rms_norm_eps=config.rms_norm_eps)
    native = {"Q8_0": "int8_group", "Q4_0": "int4", "Q5_1": "int8_group"}.get(kind, "bf16")
    for tp in (1, 2):
        for weights in assert_same_logits(path, model, tp, team):
            router, *experts = experts_of(weights).matrices
            assert router.format == "bf16"
            assert {matrix.format for matrix in experts} == {native}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_gating_func", 2, "expert_gating_func=2 is not supported"),
        ("expert_used_count", 17, "num_experts_per_tok must be an integer from 1 to 16"),
        ("expert_used_count", 0, "expert_used_count must be"),
        ("expert_count", 15, "experts.15"),
        ("expert_count", 17, "lacks model.layers.0.mlp.experts.16"),
        ("expert_feed_forward_length", 64, "has shape [96, 160], the configuration asks for [64, 160]"),
    ],
)
def test_a_gguf_file_whose_experts_are_others_than_it_says_is_one_clear_line(
    key: str, value: int, message: str, tmp_path: Path, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, f"add_{key}", lambda *_: None)
    model = checkpoints.random_model("qwen3_moe")
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16", **{key: value})
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load(path, team)
    assert "\n" not in str(error.value)


def test_experts_of_an_architecture_that_has_none_are_refused(tmp_path: Path) -> None:
    path = checkpoints.save_gguf(checkpoints.random_model("qwen2"), tmp_path / "model.gguf", "BF16", expert_count=8)
    with pytest.raises(OperatorError, match=r"qwen2\.expert_count=8 is not supported"):
        load_model_config(path)
