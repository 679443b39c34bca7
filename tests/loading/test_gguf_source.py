from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from numaserve.workers.errors import OperatorError
from numaserve.workers.models.config.load import load_model_config
from numaserve.workers.models.family import Family
from numaserve.workers.models.registry import FAMILIES, GGUF_ARCHITECTURES
from numaserve.workers.models.rope import frequencies
from numaserve.workers.weights.gguf_source import GGUFSource, expert_names, hugging_face_name
from numaserve.workers.weights.loader import head_rows
from numaserve.workers.weights.tensors import layer_shapes

EXPERTS = {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 32}
LATENT = EXPERTS | {
    "attention.kv_lora_rank": 64,
    "attention.key_length": 96,
    "attention.value_length": 64,
    "attention.key_length_mla": 64,
    "attention.value_length_mla": 32,
    "rope.dimension_count": 32,
}
OF_ARCHITECTURE = {"qwen2moe": EXPERTS, "qwen3moe": EXPERTS, "gpt-oss": EXPERTS, "deepseek2": LATENT}
GEMMA = {"gemma2", "gemma3"}


def write(path: Path, arch: str, metadata: dict[str, int | float | str], **tensors: np.ndarray) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    sizes = {
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 96,
        "context_length": 512,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
    }
    for key, value in (sizes | metadata).items():
        name = key if key.startswith("tokenizer.") else f"{arch}.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    # Files hold the vocabulary in arrays, which the reader has to step over.
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(40)])
    writer.add_array("tokenizer.ggml.token_type", [1] * 40)
    named = {"token_embd.weight": np.zeros((40, 64), np.float32), **tensors}
    for name, array in named.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", GGUF_ARCHITECTURES.values(), ids=lambda family: family.name)
def test_every_tensor_of_a_layer_has_a_name_in_gguf(family: Family, tmp_path: Path) -> None:
    arch = family.gguf_architecture or ""
    config = load_model_config(write(tmp_path / "model.gguf", arch, OF_ARCHITECTURE.get(arch, {})))
    table = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper().replace("-", "_")), config.num_layers)
    for name in layer_shapes(config, family, config.moe):
        official = f"model.layers.1.{name}"
        merged = re.sub(r"experts\.\d+", "experts", official)
        if name == family.names.sinks:  # the converter adds what they do not have
            merged += ".weight"
        found = table.get_name(merged, try_suffixes=(".weight", ".bias")) or ""
        shape = (5, 64) if name.endswith(".bias") else (5, 64, 64)
        assert official in {hugging_face_name(found, family), *expert_names(found, shape, family)}
    for official in ("model.embed_tokens.weight", "model.norm.weight"):
        assert hugging_face_name(table.get_name(official, try_suffixes=(".weight",)) or "", family) == official


def test_the_output_matrix_has_its_hugging_face_name() -> None:
    assert hugging_face_name("output.weight", FAMILIES["llama"]) == "lm_head.weight"


@pytest.mark.parametrize("name", ["blk.0.ssm_in.weight", "v.patch_embd.weight", "blk", "token_types.weight", ""])
def test_an_unknown_gguf_tensor_keeps_its_name(name: str) -> None:
    assert hugging_face_name(name, FAMILIES["llama"]) == name


@pytest.mark.parametrize("family", sorted(GEMMA))
def test_norm_weights_of_gemma_in_gguf_hold_the_one_already(family: str, tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path / "model.gguf", family, {"attention.sliding_window": 128}))
    assert not config.norm_plus_one
    assert config.post_norms
    assert config.embedding_scale == 8.0


@pytest.mark.parametrize(("family", "layers", "scale"), [("gemma2", 46, 32**-0.5), ("gemma2", 42, 16**-0.5)])
def test_the_largest_gemma_scales_queries_by_the_hidden_size_per_head(
    family: str, layers: int, scale: float, tmp_path: Path
) -> None:
    metadata: dict[str, int | float | str] = {
        "block_count": layers,
        "attention.key_length": 16,
        "attention.value_length": 16,
    }
    assert load_model_config(write(tmp_path / "model.gguf", family, metadata)).query_scale == pytest.approx(scale)


def test_only_the_llama_architecture_has_interleaved_rope(tmp_path: Path) -> None:
    for name in ("llama", "qwen2"):
        assert GGUFSource(write(tmp_path / name, name, {}), FAMILIES[name]).interleaved_rope == (name == "llama")


def test_interleaved_rows_are_put_back_in_halves() -> None:
    halves = np.arange(24)
    interleaved = halves.reshape(2, 2, 6).swapaxes(1, 2).reshape(-1)
    np.testing.assert_array_equal(interleaved[head_rows(range(2), 12, True)], halves)
    np.testing.assert_array_equal(head_rows(range(1, 2), 12, False), np.arange(12, 24))


def test_llama_3_frequencies_come_from_the_file_as_divisors(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 16, dtype=np.float32)
    path = write(tmp_path / "model.gguf", "llama", {"rope.freq_base": 5e5}, **{"rope_freqs.weight": factors})
    inverse, attention_factor = frequencies(load_model_config(path).rope, 100_000)
    np.testing.assert_allclose(inverse, 5e5 ** -(np.arange(16) / 16) / factors, rtol=1e-6)
    assert attention_factor == 1.0
    assert list(GGUFSource(path, FAMILIES["llama"]).names()) == ["model.embed_tokens.weight"]


def test_longrope_factors_come_from_the_file(tmp_path: Path) -> None:
    tensors = {
        "rope_factors_short.weight": np.full(16, 2, np.float32),
        "rope_factors_long.weight": np.full(16, 3, np.float32),
    }
    metadata: dict[str, int | float | str] = {
        "rope.scaling.original_context_length": 128,
        "rope.scaling.attn_factor": 1.5,
    }
    rope = load_model_config(write(tmp_path / "model.gguf", "phi3", metadata, **tensors)).rope
    assert (rope.kind, rope.original_max_position, rope.attention_factor) == ("longrope", 128, 1.5)
    assert (set(rope.short_factor), set(rope.long_factor)) == ({2.0}, {3.0})


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_is_read_from_the_metadata(kind: str, tmp_path: Path) -> None:
    metadata: dict[str, int | float | str] = {
        "rope.scaling.type": kind,
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128,
    }
    rope = load_model_config(write(tmp_path / "model.gguf", "qwen2", metadata)).rope
    assert (rope.kind, rope.factor) == (kind, 4.0)


def test_all_end_tokens_of_the_file_are_read(tmp_path: Path) -> None:
    metadata: dict[str, int | float | str] = {
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.bos_token_id": 1,
    }
    config = load_model_config(write(tmp_path / "model.gguf", "llama", metadata))
    assert (config.eos_token_ids, config.bos_token_id) == ((3, 5), 1)


def test_an_architecture_that_is_not_supported_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="'mamba' is not supported; supported are: deepseek2, gemma2"):
        load_model_config(write(tmp_path / "model.gguf", "mamba", {}))
