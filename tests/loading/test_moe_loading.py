"""The weights of mixtures of experts: what a checkpoint has to hold, and what each rank packs of it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.kernels import PackedMatrix, Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import AS_PUBLISHED, BF16_WEIGHTS, WeightFormat, WeightFormats
from numaserve.workers.layers.experts import Experts
from numaserve.workers.layers.mlp import Mlp
from numaserve.workers.layers.scaled_block import ScaledBlock
from numaserve.workers.models.load import load_model_config
from safetensors.torch import load_file
from test_loader import edit_tensors
from test_quantized_loading import assert_same_logits

from tests.support import checkpoints
from tests.support.families.table import EXPERTS
from tests.support.loaded import Loaded, load_part
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import edit_config, save_published, small_qwen2_moe

QUANTIZED: list[WeightFormat] = ["int8", "int4", "fp8"]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of every family."""
    return {case: checkpoints.save(checkpoints.random_model(case), tmp_path_factory.mktemp(case)) for case in EXPERTS}


def load(path: Path, team: Team, *, tp: int = 1, rank: int = 0, formats: WeightFormats = AS_PUBLISHED) -> Loaded:
    return load_part(path, team, list(range(tp + 1, 1, -1)), rank, formats=formats)


@dataclass(frozen=True)
class PackedExperts:
    """A layer's experts on one rank."""

    layer: Experts
    router: PackedMatrix
    held: range
    gate_up: list[PackedMatrix]
    down: list[PackedMatrix]
    shared: list[PackedMatrix]  # gate_up, or up without gates, and down; empty without

    @property
    def all(self) -> list[PackedMatrix]:
        """Without the router."""
        return [*self.gate_up, *self.down, *self.shared]


def experts_of(loaded: Loaded, layer: int = 0) -> PackedExperts:
    block = loaded.config.decoder.blocks[layer]
    mlp = block.beside.experts if isinstance(block, ScaledBlock) and block.beside else block.mlp
    assert isinstance(mlp, Experts)
    shared = [] if mlp.shared_mlp is None else mlp.shared_mlp.parameters()
    return PackedExperts(
        mlp,
        loaded.matrix(mlp.router),
        loaded.part.along(mlp.experts),
        loaded.matrices(mlp.gate_up),
        loaded.matrices(mlp.down),
        [loaded.matrix(each) for each in shared],
    )


@pytest.mark.spread("format")
@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("format", ["bf16", *QUANTIZED])
@pytest.mark.parametrize("case", EXPERTS)
def test_every_format_takes_the_memory_that_is_planned(
    case: str, format: WeightFormat, tp: int, saved: dict[str, Path], team: Team
) -> None:
    for rank in range(tp):
        weights = load(saved[case], team, tp=tp, rank=rank, formats=WeightFormats(format, "bf16"))
        mlp = experts_of(weights, -1)  # the first layers of some families are dense
        assert mlp.router.format == "bf16"
        assert {matrix.format for matrix in mlp.all} == {format}


def test_the_ranks_together_hold_every_expert_once(saved: dict[str, Path], team: Team) -> None:
    path = saved["qwen2_moe"]
    tensors = load_file(path / "model.safetensors")
    parts = [experts_of(load(path, team, tp=2, rank=rank, formats=BF16_WEIGHTS), 2) for rank in range(2)]
    whole = parts[0].layer
    for expert in range(whole.routing.num_experts):
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
        assert part.held == range(whole.routing.num_experts)
        assert part.layer.correction is None
    assert sum(part.shared[1].k for part in parts) == whole.shared


def half_of(gate_up: PackedMatrix, half: int) -> np.ndarray:
    return gate_up.to_numpy().reshape(-1, 2, 16, gate_up.k)[:, half].reshape(-1, gate_up.k)


def test_layers_without_experts_are_dense(saved: dict[str, Path]) -> None:
    blocks = load_model_config(saved["qwen2_moe"]).decoder.blocks
    assert [type(block.mlp) for block in blocks] == [Experts, Mlp, Experts]


def test_a_rank_without_columns_of_an_expert_holds_nothing_of_it(saved: dict[str, Path], team: Team) -> None:
    ranks = [load_part(saved["qwen3_moe"], team, [1] * 5, rank) for rank in range(5)]  # experts of three tiles
    empty = [loaded for loaded in ranks if not loaded.part.along(experts_of(loaded).layer.columns)]
    assert empty
    for loaded in empty:
        assert {(matrix.n, matrix.k) for matrix in experts_of(loaded).down} == {(160, 0)}


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
            "shape [8, 128], but the configuration asks for [7, 128]",
        ),
        (
            lambda t: t | {"model.layers.2.mlp.experts.3.down_proj.weight": torch.ones(72, 128)},
            "experts.3.down_proj.weight has shape [72, 128], but the configuration asks for [128, 72]",
        ),
        (
            lambda t: t | {"model.layers.0.mlp.shared_expert_gate.weight": torch.ones(2, 128)},
            "shape [2, 128], but the configuration asks for [1, 128]",
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
                mlp = experts_of(weights, layer)
                assert mlp.router.format == "bf16"
                assert {matrix.format for matrix in mlp.all} == {native}


def test_minimax_m2_is_loaded_as_it_is_published(tmp_path: Path, team: Team) -> None:
    config = hf.MiniMaxM2Config(
        **checkpoints.sizes(160, 6, 2, 96, head_dim=32, num_local_experts=5, num_experts_per_tok=2, rotary_dim=16)
    )
    model = checkpoints.build(config)
    path = save_published(model, tmp_path, "fp8 blocks")
    skipped = {"modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}
    edit_config(
        path,
        quantization_config=LAYOUTS["fp8 blocks"].config | skipped | {"fmt": "float8_e4m3fn"},
        rope_parameters=None,
        rope_theta=5000000,
        rotary_dim=16,
        attn_type_list=[1, 1],
        qk_norm_type="per_layer",
        scoring_func="sigmoid",
        shared_intermediate_size=0,
        use_mtp=True,
        use_qk_norm=True,
        use_routing_bias=True,
    )
    for tp in (1, 2, 3):
        for weights in assert_same_logits(path, model, tp, team):
            mlp = experts_of(weights)
            assert mlp.router.format == "bf16"
            assert {matrix.format for matrix in mlp.all} == {"fp8"}


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
    assert {matrix.format for matrix in experts_of(weights, 1).down} == {"bf16"}
    assert {matrix.format for matrix in (*experts_of(weights, 1).gate_up, *shared)} == {"int4"}


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
        routed = {matrix.format for matrix in (*mlp.gate_up, *mlp.down)}
        shared = {matrix.format for matrix in mlp.shared}
        native = LAYOUTS[layout].native
        assert (routed, shared) == (({"bf16"}, {native}) if skipped == "experts" else ({native}, {"bf16"}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_gating_func", 2, "expert_gating_func=2 is not supported"),
        ("expert_used_count", 17, "num_experts_per_tok must be an integer from 1 to 16"),
        ("expert_used_count", 0, "expert_used_count must be"),
        ("expert_count", 15, "experts.15"),
        ("expert_count", 17, "lacks model.layers.0.mlp.experts.16"),
        ("expert_feed_forward_length", 64, "has shape [96, 160], but the configuration asks for [64, 160]"),
    ],
)
def test_a_gguf_file_whose_experts_are_others_than_it_says_is_one_clear_line(
    key: str, value: int, message: str, tmp_path: Path, team: Team
) -> None:
    model = checkpoints.random_model("qwen3_moe")
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16", changes={key: value})
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load(path, team)
    assert "\n" not in str(error.value)


def test_experts_of_an_architecture_that_has_none_are_refused(tmp_path: Path) -> None:
    model = checkpoints.random_model("qwen2")
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16", changes={"expert_count": 8})
    with pytest.raises(OperatorError, match=r"qwen2\.expert_count=8 is not supported"):
        load_model_config(path)
