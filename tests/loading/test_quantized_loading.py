"""Quantized checkpoints are kept as published: what is packed is what the file stands for, in as much memory as the
plan has counted."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.kernels import PackedMatrix, Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import AS_PUBLISHED, BF16_WEIGHTS, WeightFormats
from numaserve.workers.layers.parameters import MatrixParameter
from numaserve.workers.layers.stored import GGUF_BLOCKS
from safetensors.torch import load_file, save_file

from tests.support import checkpoints
from tests.support.loaded import Loaded, load_part
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import edit_config, save_published, small_llama
from tests.support.published_writers import rounded_anew
from tests.support.reference_group import run_group

TOKENS = np.random.default_rng(0).integers(0, checkpoints.VOCAB, 60)
Model = hf.PreTrainedModel


def load(path: Path, tp: int, team: Team, formats: WeightFormats = AS_PUBLISHED) -> list[Loaded]:
    """Every rank's weights, on uneven nodes."""
    shares = list(range(tp + 1, 1, -1))
    return [load_part(path, team, shares, rank, formats=formats) for rank in range(tp)]


def matrices(loaded: Loaded) -> list[PackedMatrix]:
    """All but the embedding and the head."""
    blocks = loaded.config.decoder.blocks
    return [
        matrix
        for block in blocks
        for parameter in block.parameters()
        if isinstance(parameter, MatrixParameter)
        for matrix in loaded.matrices(parameter)
    ]


def embedding_of(loaded: Loaded) -> PackedMatrix:
    return loaded.matrix(loaded.config.decoder.embedding.table)


def head_of(loaded: Loaded) -> PackedMatrix:
    return loaded.matrix(loaded.config.decoder.head.parameter)


def assert_same_logits(
    path: Path, model: Model, tp: int, team: Team, formats: WeightFormats = AS_PUBLISHED, atol: float = 3e-4
) -> list[Loaded]:
    """The weights of all ranks, which compute what `model` does."""
    group = load(path, tp, team, formats)
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    for logits in run_group(group, TOKENS):
        np.testing.assert_allclose(logits, expected, atol=atol)
    return group


@pytest.mark.parametrize("tp", [1, 3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_checkpoint_is_kept_as_it_is_on_any_number_of_ranks(
    name: str, tp: int, tmp_path: Path, team: Team
) -> None:
    model = small_llama()
    group = assert_same_logits(save_published(model, tmp_path, name), model, tp, team)
    assert {matrix.format for weights in group for matrix in matrices(weights)} == {LAYOUTS[name].native}
    assert all(head_of(weights).format == "bf16" for weights in group)


@pytest.mark.parametrize("name", ["gptq", "w8a8", "fp8 blocks"])
def test_a_published_checkpoint_can_be_expanded(name: str, tmp_path: Path, team: Team) -> None:
    model = small_llama()
    path = save_published(model, tmp_path, name)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    (weights,) = assert_same_logits(path, model, 1, team, BF16_WEIGHTS)
    assert {matrix.format for matrix in matrices(weights)} == {"bf16"}


@pytest.mark.parametrize("kind", checkpoints.GGUF_BLOCKS)
def test_a_gguf_file_stays_quantized_and_so_does_a_tied_head(kind: str, tmp_path: Path, team: Team) -> None:
    config = hf.LlamaConfig(**checkpoints.sizes(256, 4, 2, 512, tie_word_embeddings=True))
    model = checkpoints.randomise(hf.LlamaForCausalLM(config).eval())
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", kind, expanded=False)
    head = model.lm_head.weight.detach().clone()
    model.model.embed_tokens.weight.data = head.bfloat16().float()
    model.lm_head.weight = torch.nn.Parameter(head)
    if kind in {"Q2_K", "Q6_K", "IQ2_XS", "IQ2_S"}:
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data = torch.from_numpy(rounded_anew(module.weight.detach().numpy()))
    # Scales and minima of these are products of two numbers, of which 11 bits are kept.
    atol = 6e-2 if kind in {"Q4_K", "Q5_K", "IQ4_XS", "IQ3_XXS", "IQ3_S", "IQ2_XXS"} else 3e-4
    for weights in assert_same_logits(path, model, 2, team, AS_PUBLISHED, atol):
        native = GGUF_BLOCKS[kind.lower()].native
        assert {matrix.format for matrix in [*matrices(weights), head_of(weights)]} == {native}
        assert embedding_of(weights).format == "bf16"


def test_heads_that_begin_inside_a_group_are_expanded_on_that_rank(tmp_path: Path, team: Team) -> None:
    config = hf.LlamaConfig(**checkpoints.sizes(96, 4, 2, 160), head_dim=24)
    model = checkpoints.randomise(hf.LlamaForCausalLM(config).eval())
    path = checkpoints.save_gguf(model, tmp_path / "model.gguf", "Q8_0", expanded=False)
    group = load(path, 2, team)
    assert [[matrix.format for matrix in matrices(weights)[:4]] for weights in group] == [
        ["int8_group"] * 4,
        ["int8_group", "bf16", "int8_group", "int8_group"],
    ]


@pytest.mark.parametrize(
    ("skipped", "expanded"),
    [
        ("layers.0.self_attn.v_proj", {"qkv": ("q_proj", "k_proj", "v_proj")}),
        ("layers.0.mlp.up_proj", {"gate_up": ("gate_proj", "up_proj")}),
        ("layers.0.mlp.down_proj", {"down": ("down_proj",)}),
    ],
)
def test_modules_that_are_not_converted_stay_bf16_and_so_does_what_is_fused_with_them(
    skipped: str, expanded: dict[str, tuple[str, ...]], tmp_path: Path, team: Team
) -> None:
    model = small_llama()
    path = save_published(model, tmp_path, "awq", skip=lambda name: skipped in name)
    edit_config(path, quantization_config=LAYOUTS["awq"].config | {"modules_to_not_convert": [skipped]})
    ((expanded_name, parts),) = expanded.items()
    for name, module in model.named_modules():
        if "layers.0" in name and name.endswith(parts):
            module.weight.data = module.weight.data.bfloat16().float()
    (weights,) = assert_same_logits(path, model, 1, team)
    block = weights.config.decoder.blocks[0]
    of = block.attention if expanded_name == "qkv" else block.mlp
    assert weights.matrix(getattr(of, expanded_name)).format == "bf16"
    assert [each.format for each in matrices(weights)].count("int4") == 7


def test_codes_of_4_and_8_bits_share_a_matrix(tmp_path: Path, team: Team) -> None:
    model = small_llama()
    folder = save_published(model, tmp_path, "gptq asymmetric", skip=lambda name: "v_proj" in name)
    tensors = load_file(folder / "model.safetensors")
    for layer, module in enumerate(model.model.layers):
        name = f"model.layers.{layer}.self_attn.v_proj"
        written = LAYOUTS["gptq 8 bits"].write(module.self_attn.v_proj.weight.detach().numpy())
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{suffix}": tensor for suffix, tensor in written.tensors.items()}
        module.self_attn.v_proj.weight.data = torch.from_numpy(written.values)
    save_file(tensors, folder / "model.safetensors")
    dynamic = {r"+:.*\.v_proj": {"bits": 8, "group_size": 32}}
    edit_config(folder, quantization_config=LAYOUTS["gptq asymmetric"].config | {"dynamic": dynamic})
    (weights,) = assert_same_logits(folder, model, 1, team)
    qkv = weights.matrix(weights.config.decoder.blocks[0].attention.qkv)
    assert (qkv.format, qkv.group) == ("int8_group", 32)


def test_biases_of_zeros_that_the_model_does_not_have_are_harmless(tmp_path: Path, team: Team) -> None:
    folder = save_published(small_llama(), tmp_path, "gptq")
    edit_tensors(folder, lambda tensors: tensors | {"model.layers.1.mlp.up_proj.bias": torch.zeros(640)})
    load(folder, 1, team)
    edit_tensors(folder, lambda tensors: tensors | {"model.layers.1.mlp.up_proj.bias": torch.ones(640)})
    with pytest.raises(OperatorError, match=r"up_proj\.bias, which LlamaForCausalLM does not use as configured"):
        load(folder, 1, team)


Tensors = dict[str, torch.Tensor]


def edit_tensors(folder: Path, edit: Callable[[Tensors], Tensors]) -> None:
    path = folder / "model.safetensors"
    save_file({name: value.contiguous() for name, value in edit(load_file(path)).items()}, path)


QKV = "model.layers.0.self_attn.q_proj"


# Tensors of the wrong shape or type, by layout and by what follows the module's name.
SPOILT = {
    "gptq": [
        ("qweight", torch.zeros(72, 575, dtype=torch.int32)),
        ("qweight", torch.zeros(72, 576, dtype=torch.int64)),
        ("qzeros", torch.zeros(5, 71, dtype=torch.int32)),
        ("scales", torch.zeros(4, 576, dtype=torch.float16)),
        ("scales", torch.zeros(5, 576, dtype=torch.int8)),
        ("g_idx", torch.zeros(575, dtype=torch.int32)),
    ],
    "awq": [
        ("qweight", torch.zeros(576, 73, dtype=torch.int32)),
    ],
    "w4a16": [
        ("weight_packed", torch.zeros(576, 71, dtype=torch.int32)),
        ("weight_scale", torch.zeros(575, 5, dtype=torch.float16)),
    ],
    "w4a16 asymmetric": [
        ("weight_zero_point", torch.zeros(576, 18, dtype=torch.int32)),
    ],
    "w8a8": [
        ("weight", torch.zeros(576, 576, dtype=torch.uint8)),
        ("weight_scale", torch.zeros(577, dtype=torch.float16)),
    ],
    "fp8 blocks": [
        ("weight", torch.zeros(576, 576, dtype=torch.bfloat16)),
        ("weight_scale_inv", torch.zeros(4, 5)),
    ],
    "fp8 tensor": [
        ("weight_scale", torch.zeros(2)),
    ],
}


@pytest.mark.parametrize("layout", SPOILT)
def test_a_tensor_of_another_shape_or_type_is_named(layout: str, tmp_path: Path, team: Team) -> None:
    folder = save_published(small_llama(), tmp_path, layout)
    whole = {name: value.clone() for name, value in load_file(folder / "model.safetensors").items()}  # not mapped
    for suffix, spoilt in SPOILT[layout]:
        save_file(whole | {f"{QKV}.{suffix}": spoilt}, folder / "model.safetensors")
        with pytest.raises(OperatorError, match=rf"tensor {QKV}\.{suffix} is "):
            load(folder, 1, team)


def test_a_tensor_that_is_missing_is_named(tmp_path: Path, team: Team) -> None:
    folder = save_published(small_llama(), tmp_path, "awq")
    edit_tensors(folder, lambda tensors: {k: v for k, v in tensors.items() if k != f"{QKV}.qzeros"})
    with pytest.raises(OperatorError, match=rf"lacks {QKV}\.qzeros"):
        load(folder, 1, team)
