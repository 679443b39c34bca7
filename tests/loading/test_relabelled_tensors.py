"""A tensor that is said to be of another type than it is: its bytes would be read as other numbers."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
import transformers as hf
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.config.gguf_file import open_gguf
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.weights.checkpoint import check_checkpoint, open_source
from numaserve.workers.weights.source import RawTensor
from numaserve.workers.weights.tensors import check_tensors
from safetensors.torch import load_file, save_file

from tests.support import checkpoints
from tests.support.damage import write_at
from tests.support.published import LAYOUTS
from tests.support.published_checkpoints import save_published, small_llama
from tests.support.published_mxfp4 import save_mxfp4, small_gpt_oss

SIZES = {
    **dict.fromkeys(["U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "BOOL"], 1),
    **dict.fromkeys(["F16", "BF16", "I16", "U16"], 2),
    **dict.fromkeys(["F32", "I32", "U32"], 4),
    **dict.fromkeys(["F64", "I64", "U64"], 8),
}
# The narrowest whole groups, blocks and words of every layout: each row of `LAYOUTS` is written.
NARROW = hf.LlamaConfig(**checkpoints.sizes(256, 4, 2, 256, tie_word_embeddings=False))
HALVES = {"F16", "BF16"}  # both are numbers of 16 bits that a tensor of any model may have
_HEADER_BYTES = 1 << 14  # at least; an end of spaces is allowed


def with_types(folder: Path, changes: dict[str, str]) -> None:
    """Say that some tensors are of other types. The weights are anything afterwards, which nobody looks at."""
    path = folder / "model.safetensors"
    # In place: to cut a file off and write it again has some file systems wait for the disk.
    with path.open("r+b") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, dtype in changes.items():
            header[name]["dtype"] = dtype
        end = max(about["data_offsets"][1] for name, about in header.items() if name != "__metadata__")
        text = json.dumps(header).encode().ljust(_HEADER_BYTES)
        file.seek(0)
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def types(folder: Path) -> dict[str, str]:
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: about["dtype"] for name, about in header.items() if name != "__metadata__"}


def others(dtype: str) -> Iterator[str]:
    return (other for other, size in SIZES.items() if size == SIZES[dtype] and other != dtype)


def assert_no_other_type_passes(folder: Path) -> None:
    config, known = load_model_config(folder), types(folder)
    check_checkpoint(open_model(folder), config)
    for name, dtype in known.items():
        # Nothing depends on what weight_shape says; other layers are like the first.
        if ".layers.1." in name or name.endswith(".weight_shape"):
            continue
        for other in others(dtype):
            with_types(folder, {name: other})
            if {dtype, other} == HALVES:
                check_checkpoint(open_model(folder), config)
                continue
            with pytest.raises(OperatorError) as caught:
                check_checkpoint(open_model(folder), config)
            message = str(caught.value)
            stored = {"F8_E4M3": "e4m3"}.get(other, other.lower())
            assert str(folder / "model.safetensors") in message
            assert name in message
            assert f"is {other}" in message or f"is {stored}" in message
        with_types(folder, {name: dtype})


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_tensor_of_a_quantized_checkpoint_may_be_of_another_type(name: str, tmp_path: Path) -> None:
    assert_no_other_type_passes(save_published(checkpoints.build(NARROW), tmp_path, name))


def test_no_tensor_of_a_checkpoint_with_microscaled_experts_may_be_either(tmp_path: Path) -> None:
    assert_no_other_type_passes(save_mxfp4(small_gpt_oss(), tmp_path))


@pytest.mark.parametrize("case", ["llama-tied", "qwen2"])
def test_no_tensor_of_a_plain_checkpoint_may_be_either(case: str, tmp_path: Path) -> None:
    assert_no_other_type_passes(checkpoints.save(checkpoints.random_model(case), tmp_path))


QUERY = "model.layers.0.self_attn.q_proj.weight"


def test_numbers_are_no_codes(tmp_path: Path) -> None:
    folder = save_published(small_llama(), tmp_path, "fp8 blocks")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {QUERY: tensors[QUERY].to(torch.bfloat16)}, folder / "model.safetensors")
    message = rf"model\.safetensors: tensor {QUERY} is bf16 of shape .*, but the configuration asks for e4m3 of shape"
    with pytest.raises(OperatorError, match=message):
        check_checkpoint(open_model(folder), load_model_config(folder))


def test_codes_are_no_numbers(tmp_path: Path) -> None:
    folder = checkpoints.save(checkpoints.random_model("llama-tied"), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {QUERY: tensors[QUERY].to(torch.int8)}, folder / "model.safetensors")
    with pytest.raises(
        OperatorError,
        match=rf"model\.safetensors: tensor {QUERY} is I8; supported types: BF16, "
        "F16, F32",
    ):
        check_checkpoint(open_model(folder), load_model_config(folder))


def test_a_norm_is_no_block_of_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoints.save_gguf(checkpoints.random_model("qwen2"), tmp_path / "model.gguf", "Q8_0")
    config = load_model_config(path)
    source = open_source(open_model(path), config)
    whole = source.tensor

    def tensor(name: str) -> RawTensor:
        return replace(whole(name), dtype="q8_0") if name == "model.norm.weight" else whole(name)

    monkeypatch.setattr(source, "tensor", tensor)
    with pytest.raises(
        OperatorError, match=r"model\.gguf: tensor output_norm\.weight is q8_0, but norms and biases must be f16"
    ):
        check_tensors(source, config)


def place_of_type(content: bytes, tensor: gguf.ReaderTensor) -> int:
    """Where the file says of which type the tensor is: behind its name, which its length goes before, and its shape."""
    name = tensor.name.encode()
    return content.index(len(name).to_bytes(8, "little") + name) + 8 + len(name) + 4 + 8 * len(tensor.shape)


def test_the_tensor_that_is_said_to_be_smaller_is_named(tmp_path: Path) -> None:
    path = checkpoints.save_gguf(checkpoints.random_model("qwen2"), tmp_path / "model.gguf", "Q8_0")
    content, tensors = path.read_bytes(), gguf.GGUFReader(path).tensors
    for tensor in (next(tensor for tensor in tensors if tensor.name == "blk.1.ffn_up.weight"), tensors[-1]):
        at = place_of_type(content, tensor)
        assert content[at : at + 4] == int(tensor.tensor_type).to_bytes(4, "little")
        path.write_bytes(content[:at] + int(gguf.GGMLQuantizationType.Q4_0).to_bytes(4, "little") + content[at + 4 :])
        with pytest.raises(OperatorError, match=rf"tensor '{tensor.name}' of Q4_0 ends at byte"):
            open_gguf(path)


# In bits for a weight.
SAME_SIZE = [{"F16", "BF16"}, {"Q4_0", "Q4_K", "IQ4_NL"}, {"Q5_0", "Q5_K"}, {"MXFP4", "IQ4_XS"}]


@pytest.mark.parametrize("kind", ["BF16", "Q4_0"])
def test_a_tensor_of_a_gguf_file_may_be_of_no_other_size(kind: str, tmp_path: Path) -> None:
    path = checkpoints.save_gguf(checkpoints.random_model("qwen2"), tmp_path / "model.gguf", kind)
    content, config = path.read_bytes(), load_model_config(path)
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name.startswith("blk.1."):  # like the first layer's
            continue
        at = place_of_type(content, tensor)
        for other in gguf.GGMLQuantizationType:
            if any({other.name, tensor.tensor_type.name} <= names for names in [{other.name}, *SAME_SIZE]):
                continue
            write_at(path, at, int(other).to_bytes(4, "little"))
            with pytest.raises(
                OperatorError, match=rf"model\.gguf: (not a valid GGUF file|.* has type {other.name}; supported types)"
            ):
                check_checkpoint(open_model(path), config)
        write_at(path, at, content[at : at + 4])
