"""GGUF files of models with gated delta networks: value heads that lie round-robin are put in order."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.settings import AS_PUBLISHED, BF16_WEIGHTS, ModelSettings
from numaserve.workers.layers.mixers.gated_delta import GatedDelta
from numaserve.workers.layers.parameters import MatrixParameter, in_groups
from numaserve.workers.layers.stored import GGUF_BLOCKS
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.weights.checkpoint import can_predict
from safetensors.torch import load_file
from test_quantized_loading import assert_same_logits

from tests.support import checkpoints
from tests.support.loaded import load_part
from tests.support.predicting import as_layers, save_predicting
from tests.support.published_checkpoints import small_hybrid
from tests.support.published_writers import rounded_anew


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("kind", checkpoints.GGUF_BLOCKS)
def test_a_file_stays_quantized_although_its_columns_are_put_in_order(
    kind: str, tp: int, tmp_path: Path, team: Team
) -> None:
    model = small_hybrid("qwen3_5")
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, expanded=False)
    keep_as_loaded(model, kind)
    # Scales and minima of these are products of two numbers, of which 11 bits are kept.
    atol = 0.2 if kind in {"Q4_K", "Q5_K", "IQ4_XS", "IQ3_XXS", "IQ3_S", "IQ2_XXS"} else 3e-4
    for weights in assert_same_logits(path, model, tp, team, AS_PUBLISHED, atol):
        delta = weights.config.decoder.blocks[0].attention
        assert isinstance(delta, GatedDelta)
        formats = [weights.matrix(each).format for each in (delta.qkvz, delta.o, delta.gates)]
        assert formats == [GGUF_BLOCKS[kind.lower()].native] * 2 + ["bf16"]


def keep_as_loaded(model: hf.PreTrainedModel, kind: str) -> None:
    """Round what is rounded again, and what is expanded to bf16."""
    for name, module in model.named_modules():
        if name.endswith(("in_proj_a", "in_proj_b", "embed_tokens")):
            module.weight.data = module.weight.data.bfloat16().float()
        elif kind in {"Q2_K", "Q6_K", "IQ2_XS", "IQ2_S"} and isinstance(module, torch.nn.Linear):
            module.weight.data = torch.from_numpy(rounded_anew(module.weight.detach().numpy()))


@pytest.mark.parametrize("expanded", [False, True])
def test_heads_that_begin_inside_a_block_are_expanded(expanded: bool, tmp_path: Path, team: Team) -> None:
    model = small_hybrid("qwen3_5", linear_num_value_heads=4, linear_value_head_dim=48)
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", "Q8_0", expanded=False)
    for name, module in model.named_modules():
        if name.endswith(("in_proj_a", "in_proj_b", "out_proj")) or (expanded and isinstance(module, torch.nn.Linear)):
            module.weight.data = module.weight.data.bfloat16().float()
    model.model.embed_tokens.weight.data = model.model.embed_tokens.weight.data.bfloat16().float()
    for weights in assert_same_logits(path, model, 2, team, BF16_WEIGHTS if expanded else AS_PUBLISHED):
        delta = weights.config.decoder.blocks[0].attention
        assert isinstance(delta, GatedDelta)
        assert weights.matrix(delta.o).format == "bf16"
        assert weights.matrix(delta.qkvz).format == ("bf16" if expanded else "int8_group")


def test_equal_numbers_of_heads_lie_in_order(tmp_path: Path, team: Team) -> None:
    model = small_hybrid("qwen3_5", linear_num_key_heads=4, linear_num_value_heads=4)
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", "F32")
    delta = load_model_config(path).decoder.blocks[0].attention
    assert isinstance(delta, GatedDelta)
    assert delta.rounds == 1
    assert_same_logits(path, model, 2, team)


def test_units_are_found_round_robin() -> None:
    np.testing.assert_array_equal(in_groups(6, 2), [0, 3, 1, 4, 2, 5])
    np.testing.assert_array_equal(in_groups(4, 1), range(4))


def test_the_layer_that_predicts_is_one_more_layer_of_a_file(tmp_path: Path, team: Team) -> None:
    folder = save_predicting("qwen3_5", tmp_path / "folder")
    tensors = load_file(folder / "model.safetensors")
    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    extra = as_layers({name: each for name, each in tensors.items() if name.startswith("mtp.")})
    file = checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16", more=extra)
    assert can_predict(open_model(file), weights=True)
    assert load_model_config(file).num_layers == 2
    settings = ModelSettings(mtp=True)
    of_file, of_folder = (
        load_part(path, team, [1], config=load_model_config(path, settings), settings=settings)
        for path in (file, folder)
    )
    decoders = of_file.config.decoder, of_folder.config.decoder
    predictors = [decoder.predictor for decoder in decoders]
    assert None not in predictors
    for one, other in zip(*(decoder.parameters() for decoder in decoders), strict=True):
        if isinstance(one, MatrixParameter):
            pairs = zip(of_file.matrices(one), of_folder.matrices(other), strict=True)
            assert all((mine.to_numpy() == theirs.to_numpy()).all() for mine, theirs in pairs)
        else:
            np.testing.assert_allclose(of_file.vector(one).to_numpy(), of_folder.vector(other).to_numpy(), rtol=1e-6)
