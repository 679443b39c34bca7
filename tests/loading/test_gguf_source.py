import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.axes import Units
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.norm import Norm
from numaserve.workers.layers.parameters import Order, Part, Source
from numaserve.workers.models.config.gguf_names import NAMES, GgufNames
from numaserve.workers.models.config.rope import query_scale
from numaserve.workers.models.family import Family
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.models.registry import families
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import UNROTATED, RopeConfig, frequencies
from numaserve.workers.weights.checkpoint import open_source
from numaserve.workers.weights.tensors import expected_tensors

from tests.support.configured import configured
from tests.support.gguf_files import write_gguf
from tests.support.gguf_models import as_converted
from tests.support.models import layers_of

EXPERTS = {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 32}
LATENT = EXPERTS | {
    "attention.kv_lora_rank": 64,
    "attention.key_length": 96,
    "attention.value_length": 64,
    "attention.key_length_mla": 64,
    "attention.value_length_mla": 32,
    "rope.dimension_count": 32,
}
DELTA = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
    "full_attention_interval": 2,
}
SPACE: dict[str, int | list[int]] = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 128,
    "attention.head_count_kv": [0, 1],
}
SHORT: dict[str, int | list[int]] = {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 1]}
OF_FAMILY = {"mixtral": EXPERTS, "deepseek_v3": {"expert_gating_func": 2}}
OF_ARCHITECTURE = {
    "qwen2moe": EXPERTS,
    "qwen3moe": EXPERTS,
    "gpt-oss": EXPERTS,
    "minimax-m2": EXPERTS,
    "llama4": EXPERTS | {"interleave_moe_layer_step": 1},
    "glm4moe": EXPERTS | {"expert_shared_count": 1, "leading_dense_block_count": 1},
    "deepseek2": LATENT,
    "mistral4": LATENT,
    "granitehybrid": SPACE | EXPERTS | {"expert_shared_feed_forward_length": 48},
    "nemotron_h": SPACE | {"feed_forward_length": [0, 96], "attention.head_count_kv": [1, 0]},
    "kimi-linear": LATENT
    | EXPERTS
    | {
        "expert_gating_func": 2,
        "leading_dense_block_count": 1,
        "expert_shared_count": 1,
        "kda.head_dim": 16,
        "ssm.conv_kernel": 4,
        "attention.head_count_kv": [0, 1],
    },
    "lfm2": SHORT,
    "lfm2moe": SHORT | EXPERTS | {"expert_gating_func": 2, "leading_dense_block_count": 1},
    "mimo2": {
        "expert_gating_func": 2,
        "attention.head_count_kv": [1, 2],
        "attention.sliding_window": 128,
        "attention.sliding_window_pattern": [0, 1],
        "attention.value_length": 24,
    }
    | EXPERTS,
    "qwen35": DELTA,
    "qwen35moe": DELTA | EXPERTS | {"expert_shared_feed_forward_length": 48},
    "qwen3next": DELTA | EXPERTS | {"expert_shared_feed_forward_length": 48},
    "gemma4": {
        "attention.key_length": 48,
        "attention.value_length": 48,
        "attention.key_length_swa": 32,
        "embedding_length_per_layer_input": 32,
        "attention.sliding_window": 128,
    },
}
GEMMA = {"gemma2", "gemma3"}


Metadata = dict[str, int | float | str | list[int]]


def write(path: Path, arch: str, metadata: Metadata, **tensors: np.ndarray) -> Path:
    sizes = {
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 96,
        "context_length": 512,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
    }
    # Files hold the vocabulary in arrays, which the reader has to step over.
    vocabulary = {
        "tokenizer.ggml.tokens": [f"token {i}" for i in range(40)],
        "tokenizer.ggml.token_type": [1] * 40,
    }
    named = {"token_embd.weight": np.zeros((40, 64), np.float32), **tensors}
    return write_gguf(path, arch, sizes | metadata | vocabulary, named.items())


def names_of(config: ModelConfig) -> GgufNames:
    return GgufNames(config.decoder, config.skipped_layers)


# The names of towers, which are in files of their own: test_gguf_vision.py.
@pytest.mark.parametrize(
    "family",
    [family for family in families().values() if family.gguf and "" in family.gguf.projectors],
    ids=lambda family: family.name,
)
def test_every_tensor_has_a_name_in_gguf(family: Family, tmp_path: Path) -> None:
    assert family.gguf is not None
    arch = family.gguf.architecture
    metadata = OF_ARCHITECTURE.get(arch, {}) | OF_FAMILY.get(family.name, {})
    config = load_model_config(write(tmp_path / "model.gguf", arch, metadata))
    assert config.family == family.name
    known = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(known[arch], 2)
    expected, parts = expected_tensors(config, NAMES)
    assert {found[1] for name in expected if (found := re.search(r"layers?\.(\d+)\.", name))} == {"0", "1"}
    assert not parts
    for official, shape in expected.items():
        converted = as_converted(official)
        spelt = (converted, converted.removeprefix("model."))  # encoders are converted without the prefix
        found = next(filter(None, (table.get_name(each, try_suffixes=(".weight", ".bias")) for each in spelt)), "")
        count = (5,) if re.search(r"\.\d+\.(\w+_proj|w\d)\.", official) else ()
        names, each = names_of(config).find(found, (*count, *shape))
        assert official in names
        assert (len(names), each) == (5 if count else 1, shape)


def test_the_output_matrix_has_its_hugging_face_name() -> None:
    names = names_of(configured(tie_word_embeddings=False))
    assert names.find("output.weight", (49152, 576)) == (["lm_head.weight"], (49152, 576))


@pytest.mark.parametrize("name", ["blk.0.ssm_in.weight", "v.patch_embd.weight", "blk", "token_types.weight", ""])
def test_an_unknown_gguf_tensor_keeps_its_name(name: str) -> None:
    assert names_of(configured()).find(name, (3, 5)) == ([name], (3, 5))


@pytest.mark.parametrize("family", sorted(GEMMA))
def test_norm_weights_of_gemma_in_gguf_hold_the_one_already(family: str, tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path / "model.gguf", family, {"attention.sliding_window": 128}))
    norms = layers_of(config, Norm)
    each = 6 if family == "gemma3" else 4  # with those after attention and after the MLP, and of queries and keys
    assert len(norms) == each * config.num_layers + 1
    assert not any(norm.plus_one for norm in norms)
    assert config.decoder.embedding.scale == 8.0


@pytest.mark.parametrize(("family", "layers", "scale"), [("gemma2", 46, 32**-0.5), ("gemma2", 42, 16**-0.5)])
def test_the_largest_gemma_scales_queries_by_the_hidden_size_per_head(
    family: str, layers: int, scale: float, tmp_path: Path
) -> None:
    metadata: Metadata = {"block_count": layers, "attention.key_length": 16, "attention.value_length": 16}
    config = load_model_config(write(tmp_path / "model.gguf", family, metadata))
    assert [attention.scale for attention in layers_of(config, Attention)] == pytest.approx([scale] * layers)


@pytest.mark.parametrize(
    ("arch", "pairs"),
    [*((arch, [32, 32, 0]) for arch in ("llama", "smollm3", "mistral3", "granite", "ernie4_5")), ("qwen2", [0, 0, 0])],
)
def test_only_llama_and_its_kin_have_interleaved_queries_and_keys(arch: str, pairs: list[int], tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path / "model.gguf", arch, {"attention.key_length": 32}))
    for attention in layers_of(config, Attention):
        assert [part.order.pairs for part in attention.qkv.parts] == pairs
    assert len(layers_of(config, Attention)) == 2


def test_ministral_3_in_gguf_scales_its_queries(tmp_path: Path) -> None:
    metadata: Metadata = {
        "attention.temperature_scale": 0.1,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128,
    }
    config = load_model_config(write(tmp_path / "model.gguf", "mistral3", metadata))
    assert config.max_position > 128
    assert {each.rotation.rope.query_scale for each in layers_of(config, Attention)} == {query_scale(0.1, 128)}
    assert {frequencies(attention.rotation.rope, 128)[1] for attention in layers_of(config, Attention)} == {1.0}


def test_scales_of_granite_that_a_file_leaves_out_are_none(tmp_path: Path) -> None:
    metadata: Metadata = {"logit_scale": 4.0, "residual_scale": 0.0}
    config = load_model_config(write(tmp_path / "model.gguf", "granite", metadata))
    assert {attention.scale for attention in layers_of(config, Attention)} == {32**-0.5}
    assert (config.decoder.embedding.scale, config.decoder.norm.factor) == (1.0, 0.25)


def test_granite_says_in_a_switch_of_its_own_that_it_is_not_rotated(tmp_path: Path) -> None:
    config = load_model_config(write(tmp_path / "model.gguf", "granite", {"rope.scaling.finetuned": False}))
    assert {attention.rotation.rope for attention in layers_of(config, Attention)} == {UNROTATED}


def test_interleaved_rows_are_put_back_in_halves() -> None:
    halves = np.arange(24)
    interleaved = halves.reshape(2, 2, 6).swapaxes(1, 2).reshape(-1)
    np.testing.assert_array_equal(interleaved[Order(2, 12, pairs=12).rows()], halves)
    of_second_rank = configured().partition([1, 1]).ranks[1]
    for pairs, second in ((12, halves[12:]), (0, interleaved[12:])):
        heads = Part(Source("q_proj", (24, 8)), Order(2, 12, pairs=pairs), Units("heads", 2), 12)
        np.testing.assert_array_equal(interleaved[of_second_rank.rows(heads)], second)


def rope_of(config: ModelConfig) -> RopeConfig:
    """Of all layers."""
    (rope,) = {attention.rotation.rope for attention in layers_of(config, Attention)}
    return rope


def test_llama_3_frequencies_come_from_the_file_as_divisors(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 16, dtype=np.float32)
    path = write(tmp_path / "model.gguf", "llama", {"rope.freq_base": 5e5}, **{"rope_freqs.weight": factors})
    config = load_model_config(path)
    inverse, attention_factor = frequencies(rope_of(config), 100_000)
    np.testing.assert_allclose(inverse, 5e5 ** -(np.arange(16) / 16) / factors, rtol=1e-6)
    assert attention_factor == 1.0
    assert list(open_source(open_model(path), config).names()) == ["model.embed_tokens.weight"]


def test_longrope_factors_come_from_the_file(tmp_path: Path) -> None:
    tensors = {
        "rope_factors_short.weight": np.full(16, 2, np.float32),
        "rope_factors_long.weight": np.full(16, 3, np.float32),
    }
    metadata: Metadata = {"rope.scaling.original_context_length": 128, "rope.scaling.attn_factor": 1.5}
    rope = rope_of(load_model_config(write(tmp_path / "model.gguf", "phi3", metadata, **tensors)))
    assert (rope.kind, rope.original_max_position, rope.attention_factor) == ("longrope", 128, 1.5)
    assert (set(rope.short_factor), set(rope.long_factor)) == ({2.0}, {3.0})


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_is_read_from_the_metadata(kind: str, tmp_path: Path) -> None:
    metadata: Metadata = {
        "rope.scaling.type": kind,
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128,
    }
    rope = rope_of(load_model_config(write(tmp_path / "model.gguf", "qwen2", metadata)))
    assert (rope.kind, rope.factor) == (kind, 4.0)


@pytest.mark.parametrize(("counts", "read"), [([1, 1], 1), ([], 2)])
def test_a_number_for_each_layer_is_read_where_it_is_the_same_for_all(
    counts: list[int], read: int, tmp_path: Path
) -> None:
    config = load_model_config(write(tmp_path / "model.gguf", "llama", {"attention.head_count_kv": counts}))
    assert {attention.kv_heads for attention in layers_of(config, Attention)} == {read}


def test_all_end_tokens_of_the_file_are_read(tmp_path: Path) -> None:
    metadata: Metadata = {
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.bos_token_id": 1,
    }
    config = load_model_config(write(tmp_path / "model.gguf", "llama", metadata))
    assert (config.eos_token_ids, config.bos_token_id) == ((3, 5), 1)


def test_an_architecture_that_is_not_supported_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"'llama5' is not supported \(similar supported names: llama, llama4\)"):
        load_model_config(write(tmp_path / "model.gguf", "llama5", {}))


@pytest.mark.parametrize(
    ("arch", "changes", "message"),
    [
        (
            "llama",
            {"attention.head_count_kv": [2, 1]},
            "num_key_value_heads must be an integer from 1 to 1024, not a list",
        ),
        (
            "lfm2",
            {"attention.head_count_kv": [0, 2, 0]},
            "head_count_kv must be a list with a number for each of the 2",
        ),
        (
            "mimo2",
            {"block_count": 3, "attention.head_count_kv": [1, 2, 1], "attention.sliding_window_pattern": [0, 1, 1]},
            "head_count_kv must have one number for layers that slide",
        ),
        ("mimo2", {"attention.sliding_window_pattern": [0]}, "sliding_window_pattern must have a value for each layer"),
        ("mimo2", {"expert_gating_func": 1}, "expert_gating_func=1 is not supported"),
        (
            "gemma4",
            {"feed_forward_length": [0, 96]},
            "gemma4.feed_forward_length must hold integers from 1 to 1048576, not 0",
        ),
        (
            "gemma4",
            {"attention.head_count_kv": [1, 2, 1]},
            "gemma4.attention.head_count_kv must be a list with a number for each",
        ),
        ("gemma4", {"feed_forward_length": [96, 128]}, "gemma4.feed_forward_length must have one value, or twice that"),
        (
            "nemotron_h",
            {"ssm.inner_size": 127},
            "nemotron_h.ssm.inner_size=127 must be a multiple of nemotron_h.ssm.time_step",
        ),
        ("nemotron_h", {"nextn_predict_layers": 1}, "nemotron_h.nextn_predict_layers=1 is not supported"),
        (
            "nemotron_h",
            {"feed_forward_length": [0, 1, 2]},
            "nemotron_h.feed_forward_length must be a list with a number for each",
        ),
        (
            "nemotron_h",
            {"feed_forward_length": [0, 2**21]},
            "nemotron_h.feed_forward_length must hold integers from 0 to 1048576",
        ),
        (
            "qwen35",
            {"ssm.inner_size": 63},
            "qwen35.ssm.inner_size=63 must be a multiple of qwen35.ssm.time_step_rank=4",
        ),
        ("qwen35", {"ssm.group_count": 3}, "must be a multiple of linear_num_key_heads=3"),
        ("qwen35", {"nextn_predict_layers": 2}, "nextn_predict_layers must be an integer from 0 to 1"),
    ],
)
def test_a_file_that_contradicts_itself_is_one_clear_line(
    arch: str, changes: Metadata, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "model.gguf", arch, OF_ARCHITECTURE.get(arch, {}) | changes)
    with pytest.raises(OperatorError, match=re.escape(message)) as error:
        load_model_config(path)
    assert "\n" not in str(error.value)
