"""The weights of multi-head latent attention: what a checkpoint has to hold, and what each rank packs of it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.kernels import PackedMatrix, Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import AS_PUBLISHED, BF16_WEIGHTS, WeightFormat, WeightFormats
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.models.load import load_model_config
from safetensors.torch import load_file
from test_loader import edit_tensors
from test_quantized_loading import assert_same_logits

from tests.support import checkpoints
from tests.support.families.table import LATENTS
from tests.support.loaded import Loaded, load_part
from tests.support.published_checkpoints import save_published, small_deepseek


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of every family."""
    return {case: checkpoints.save(checkpoints.random_model(case), tmp_path_factory.mktemp(case)) for case in LATENTS}


def load(path: Path, team: Team, *, shares: list[int], rank: int = 0, formats: WeightFormats = BF16_WEIGHTS) -> Loaded:
    return load_part(path, team, shares, rank, formats=formats)


def exchanged_keys(model: hf.PreTrainedModel, weights: Loaded) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Gives `model` what is kept of what expands its latents to keys. This and what it had before, of each layer:
    [heads, part without positions, latent]."""
    pairs = []
    for index, layer in enumerate(model.model.layers):
        w_uk, expanded = latent_of(weights, index).w_uk, layer.self_attn.kv_b_proj.weight.data
        heads, (latent, nope) = model.config.num_attention_heads, (expanded.shape[1], w_uk.k)
        keys = expanded.view(heads, -1, latent)[:, :nope]
        kept = torch.from_numpy(w_uk.to_numpy()).view(heads, latent, nope).mT
        pairs.append((kept, keys.clone()))
        keys.copy_(kept)
    return pairs


@dataclass(frozen=True)
class PackedLatents:
    """A layer's matrices on one rank."""

    qkv_a: PackedMatrix
    q_b: PackedMatrix | None
    w_uk: PackedMatrix
    w_uv: PackedMatrix

    @property
    def matrices(self) -> list[PackedMatrix]:
        """All of them."""
        return [each for each in (self.qkv_a, self.q_b, self.w_uk, self.w_uv) if each is not None]


def latent_of(loaded: Loaded, layer: int = 0) -> PackedLatents:
    attention = loaded.config.decoder.blocks[layer].attention
    assert isinstance(attention, LatentAttention)
    q_b = None if attention.q_b is None else loaded.matrix(attention.q_b)
    others = (loaded.matrix(each) for each in (attention.w_uk, attention.w_uv))
    return PackedLatents(loaded.matrix(attention.qkv_a), q_b, *others)


@pytest.mark.parametrize("case", LATENTS)
@pytest.mark.parametrize("format", ["bf16", "int8", "int4", "fp8"])
def test_every_format_takes_the_memory_that_is_planned(
    case: str, format: WeightFormat, saved: dict[str, Path], team: Team
) -> None:
    for rank in range(3):
        weights = load(saved[case], team, shares=[3, 2, 1], rank=rank, formats=WeightFormats(format, "bf16"))
        latent = latent_of(weights)
        *others, w_uk, w_uv = latent.matrices
        assert {matrix.format for matrix in others} == {format}
        assert {w_uk.format, w_uv.format} == {"bf16" if format == "bf16" else "int8_group"}


def test_heads_are_divided_and_so_are_the_rows_that_make_latents(saved: dict[str, Path], team: Team) -> None:
    tensors = load_file(saved["deepseek_v3"] / "model.safetensors")
    attention = {
        name.removeprefix("model.layers.1.self_attn.").removesuffix(".weight"): values.float().numpy()
        for name, values in tensors.items()
        if name.startswith("model.layers.1.self_attn.")
    }
    heads, nope, rope, value, latent = 3, 32, 32, 64, 96
    parts = [latent_of(load(saved["deepseek_v3"], team, shares=[2, 1], rank=rank), 1) for rank in range(2)]
    halves = [*range(0, rope, 2), *range(1, rope, 2)]
    rows = [*range(latent), *(latent + i for i in halves)]
    read = [attention["kv_a_proj_with_mqa"][rows], attention["q_a_proj"]]
    np.testing.assert_array_equal(np.concatenate([part.qkv_a.to_numpy() for part in parts]), np.concatenate(read))
    assert [part.qkv_a.n for part in parts] == [5 * 32, 40]
    queries = attention["q_b_proj"].reshape(heads, nope + rope, -1)[:, [*range(nope), *(nope + i for i in halves)]]
    q_b = [part.q_b for part in parts if part.q_b is not None]
    together = np.concatenate([part.to_numpy() for part in q_b])
    np.testing.assert_array_equal(together, queries.reshape(together.shape))
    keys, values = np.split(attention["kv_b_proj"].reshape(heads, nope + value, latent), [nope], axis=1)
    w_uk = np.concatenate([part.w_uk.to_numpy() for part in parts]).reshape(heads, latent, nope)
    np.testing.assert_array_equal(w_uk, keys.swapaxes(1, 2))
    w_uv = np.concatenate([part.w_uv.to_numpy() for part in parts])
    np.testing.assert_array_equal(w_uv, values.reshape(w_uv.shape))
    assert [part.n // (nope + rope) for part in q_b] == [2, 1]


@pytest.mark.parametrize("layout", ["gptq", "awq", "w8a8", "fp8 blocks"])
def test_a_published_checkpoint_is_kept_as_it_is_but_for_what_is_turned(
    layout: str, tmp_path: Path, team: Team
) -> None:
    model = small_deepseek()
    path = save_published(model, tmp_path, layout)
    native = load_model_config(path).stored["layers.1.self_attn.q_b_proj"].native
    whole = load(path, team, shares=[1], formats=AS_PUBLISHED)
    for kept, keys in exchanged_keys(model, whole):
        # Scales of a block are those of its transpose; others are rounded again, to 8 bits in groups.
        largest = 0 if layout == "fp8 blocks" else keys.abs().amax(1, keepdim=True)
        assert ((kept - keys).abs() <= largest / 253).all()
    for tp in (1, 3):
        for weights in assert_same_logits(path, model, tp, team):
            *others, w_uk, w_uv = latent_of(weights, 1).matrices
            assert {matrix.format for matrix in (*others, w_uv)} == {native}
            assert w_uk.format == ("fp8" if layout == "fp8 blocks" else "int8_group")


def test_blocks_that_heads_do_not_begin_with_are_rounded_again_when_they_are_turned(tmp_path: Path, team: Team) -> None:
    model = small_deepseek(v_head_dim=64)
    weights = load(save_published(model, tmp_path, "fp8 blocks"), team, shares=[1], formats=AS_PUBLISHED)
    assert [matrix.format for matrix in latent_of(weights).matrices] == ["fp8", "fp8", "int8_group", "fp8"]
    kept, keys = exchanged_keys(model, weights)[0]
    assert ((kept - keys).abs() <= keys.abs().amax(1, keepdim=True) / 253).all()


def test_a_rank_without_heads_packs_none(saved: dict[str, Path], team: Team) -> None:
    weights = load(saved["deepseek_v3"], team, shares=[1] * 5, rank=4)
    attention = weights.config.decoder.blocks[0].attention
    assert not weights.part.along(attention.queries)
    latent = latent_of(weights)
    assert [matrix.n for matrix in latent.matrices] == [8, 0, 0, 0]


def test_layers_for_predicting_several_tokens_are_left_out(tmp_path: Path, team: Team) -> None:
    folder = checkpoints.save(checkpoints.random_model("deepseek_v3"), tmp_path)
    edit_tensors(folder, lambda t: t | {"model.layers.3.eh_proj.weight": torch.ones(96, 192)})
    assert load(folder, team, shares=[1]).config.num_layers == 3


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
