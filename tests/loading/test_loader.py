import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.kernels import Team
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import BF16_WEIGHTS, WeightFormats
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.weights import loader
from numaserve.workers.weights.checkpoint import open_source
from numaserve.workers.weights.source import RawTensor
from safetensors.torch import load_file, save_file

from tests.support import checkpoints
from tests.support.loaded import Loaded, load_part
from tests.support.reference_group import run_group

TOKENS = np.random.default_rng(0).integers(0, checkpoints.VOCAB, 80)
POSITIONS = 200


INT8_WEIGHTS = WeightFormats(linear="int8", lm_head="int8")


def load_group(path: Path, tp: int, team: Team) -> list[Loaded]:
    shares = list(range(tp + 1, 1, -1))  # uneven nodes: 2; 3, 2; 4, 3, 2
    return [load_part(path, team, shares, rank, formats=BF16_WEIGHTS, positions=POSITIONS) for rank in range(tp)]


def assert_same_logits(path: Path, model: hf.PreTrainedModel, tp: int, team: Team) -> None:
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    for logits in run_group(load_group(path, tp, team), TOKENS):
        np.testing.assert_allclose(logits, expected, atol=2e-4)


@pytest.mark.parametrize("tp", [1, 2])
def test_int8_weights_are_those_of_the_checkpoint_and_the_embedding_stays_bf16(
    tp: int, tmp_path: Path, team: Team
) -> None:
    path = checkpoints.save(checkpoints.random_model("llama-tied"), tmp_path)
    for rank in range(tp):
        packed, exact = (load_part(path, team, [1] * tp, rank, formats=each) for each in (INT8_WEIGHTS, BF16_WEIGHTS))
        decoder = packed.config.decoder
        head = decoder.head.parameter
        assert (packed.matrix(decoder.embedding.table).format, packed.matrix(head).format) == ("bf16", "int8")
        for parameter in (decoder.blocks[1].mlp.down, head):
            got, wanted = packed.matrix(parameter), exact.matrix(parameter)
            values = wanted.to_numpy()
            half_steps = np.abs(values).max(axis=1, keepdims=True) / 127 / 2
            assert (np.abs(got.to_numpy() - values) <= half_steps * 1.001).all()


@pytest.mark.spread("case,tp")
@pytest.mark.parametrize("kind", checkpoints.GGUF_TYPES)
@pytest.mark.parametrize(("case", "tp"), [("llama-tied", 2), ("qwen2", 3)])
def test_an_expanded_gguf_file_computes_what_its_dequantized_weights_compute(
    case: str, tp: int, kind: str, tmp_path: Path, team: Team
) -> None:
    model = checkpoints.random_model(case)
    assert_same_logits(checkpoints.save_gguf(model, tmp_path / "model.gguf", kind), model, tp, team)


def test_quantized_heads_that_begin_inside_a_block_are_divided_too(tmp_path: Path, team: Team) -> None:
    config = hf.LlamaConfig(**checkpoints.sizes(96, 4, 2, 160), head_dim=24)
    model = checkpoints.randomise(hf.LlamaForCausalLM(config).eval())
    assert_same_logits(checkpoints.save_gguf(model, tmp_path / "model.gguf", "Q8_0"), model, 2, team)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_multimodal_checkpoint_is_found(prefix: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.random_model("gemma3")
    folder = checkpoints.save(model, tmp_path)
    edit_tensors(
        folder,
        lambda tensors: (
            {name.replace("model.", prefix, 1): value for name, value in tensors.items()}
            | {"vision_tower.patch.weight": torch.zeros(2), "multi_modal_projector.weight": torch.zeros(2)}
        ),
    )
    text = json.loads((folder / "config.json").read_text())
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    (folder / "config.json").write_text(json.dumps(outer))
    assert_same_logits(folder, model, 1, team)


@pytest.mark.parametrize(
    ("prefix", "head"), [("language_model.model.", "language_model."), ("model.language_model.", "")]
)
def test_the_text_part_of_mistral_small_is_found_with_its_head(
    prefix: str, head: str, tmp_path: Path, team: Team
) -> None:
    model = checkpoints.random_model("mistral")
    folder = checkpoints.save(model, tmp_path)
    edit_tensors(
        folder,
        lambda tensors: (
            {
                f"{head}{name}" if name.startswith("lm_head") else name.replace("model.", prefix, 1): value
                for name, value in tensors.items()
            }
            | {"vision_tower.patch_conv.weight": torch.zeros(2), "multi_modal_projector.norm.weight": torch.zeros(2)}
        ),
    )
    text = json.loads((folder / "config.json").read_text())
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    (folder / "config.json").write_text(json.dumps(outer))
    assert_same_logits(folder, model, 2, team)


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file({name: value.contiguous() for name, value in edit(load_file(path)).items()}, path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.save(checkpoints.random_model("llama-tied"), tmp_path)


def test_tied_embeddings_are_packed_once(folder: Path, team: Team) -> None:
    (loaded,) = load_group(folder, 1, team)
    decoder = loaded.config.decoder
    assert loaded.matrix(decoder.head.parameter) is loaded.matrix(decoder.embedding.table)


def test_layers_of_a_kind_share_their_rope_table(tmp_path: Path, team: Team) -> None:
    (loaded,) = load_group(checkpoints.save(checkpoints.random_model("gemma3"), tmp_path), 1, team)
    ropes = [loaded.native(loaded.part.rope(block.attention.rotation.rope)) for block in loaded.config.decoder.blocks]
    assert ropes[0] is ropes[1]
    assert ropes[0] is not ropes[2]


def test_buffers_and_a_head_that_is_tied_anyway_are_ignored(folder: Path, team: Team) -> None:
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(32), "lm_head.weight": torch.zeros(499, 576)}
    edit_tensors(folder, lambda tensors: tensors | more)
    load_group(folder, 1, team)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda t: {k: v for k, v in t.items() if "layers.1.mlp.up" not in k},
            "lacks model.layers.1.mlp.up_proj.weight",
        ),
        (lambda t: {k: v for k, v in t.items() if "embed" not in k}, "no tensor model.embed_tokens.weight"),
        (lambda t: t | {"model.layers.0.self_attn.q_norm.weight": torch.ones(64)}, "self_attn.q_norm.weight"),
        (lambda t: t | {"model.layers.2.input_layernorm.weight": torch.ones(576)}, "model.layers.2"),
        (lambda t: t | {"model.norm.weight": torch.ones(575)}, "shape [575], but the configuration asks for [576]"),
        (lambda t: t | {"model.norm.weight": torch.ones(())}, "shape [], but the configuration asks for [576]"),
        (lambda t: t | {"model.embed_tokens.weight": torch.ones(576, 499)}, "shape [576, 499]"),
        (lambda t: t | {"model.norm.weight": torch.ones(576, dtype=torch.int8)}, "is I8"),
        (lambda t: {f"x{i}": torch.ones(1) for i in range(9)} | t, "and 6 more"),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_configuration_is_one_clear_line(
    edit: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], message: str, folder: Path, team: Team
) -> None:
    edit_tensors(folder, edit)
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load_group(folder, 1, team)
    assert "\n" not in str(error.value)


def test_weights_are_views_of_the_file_until_they_are_packed(folder: Path) -> None:
    source = open_source(open_model(folder), load_model_config(folder))
    assert all(not source.tensor(name).data.flags.owndata for name in source.names())


def test_norms_in_blocks_are_refused() -> None:
    tensor = RawTensor("output_norm.weight", np.zeros(34, np.uint8), "q8_0", (32,))
    with pytest.raises(OperatorError, match=r"output_norm\.weight is q8_0"):
        loader.as_float32(tensor)


@pytest.mark.parametrize(("dtype", "kind"), [(np.float32, "f32"), (np.float16, "f16")])
def test_vectors_keep_their_values(dtype: type[np.floating], kind: str) -> None:
    values = np.array([1.5, -2.0, 0.25], dtype)
    raw = RawTensor("norm", values.view(np.uint8), kind, (3,))  # type: ignore[arg-type]
    np.testing.assert_array_equal(loader.as_float32(raw), values.astype(np.float32))
