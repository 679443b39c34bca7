import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.mixers.attention import Attention
from numaserve.workers.layers.mixers.latent_attention import LatentAttention
from numaserve.workers.layers.mlp import Mlp
from numaserve.workers.layers.norm import Norm
from numaserve.workers.models.config.rope import query_scale
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.rope import RopeConfig

from tests.support import checkpoints
from tests.support.families.table import DENSE, EXPERTS, FAMILIES
from tests.support.models import layers_of, the_only, windows

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 96,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "intermediate_size": 160,
    "vocab_size": 499,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}


def write(folder: Path, **values: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


# Layers of Gemma 4 and of MiMo-V2-Flash differ from each other; see test_gemma4.py and test_mimo_v2_flash.py.
ALIKE = [case for case in (*DENSE, *EXPERTS) if not case.startswith(("gemma4", "mimo"))]


@pytest.mark.parametrize("case", ALIKE)
def test_each_family_reads_what_transformers_reads(case: str, tmp_path: Path) -> None:
    expected = FAMILIES[case].config()
    expected.architectures = [checkpoints.architecture(expected)]
    expected.save_pretrained(tmp_path)
    config = load_model_config(tmp_path)
    assert config.architecture == expected.architectures[0]
    assert config.hidden_size == expected.hidden_size
    all_kinds = getattr(expected, "layer_types", None) or ["full_attention"] * expected.num_hidden_layers
    kinds = [kind for kind in all_kinds if kind not in ("moe", "mlp")]  # which follow a mixer in a block
    assert config.num_layers == len(kinds)
    attention = layers_of(config, Attention)
    assert {(each.query_heads, each.kv_heads) for each in attention} <= {
        (expected.num_attention_heads, expected.num_key_value_heads)
    }
    head_dim = getattr(expected, "head_dim", None) or expected.hidden_size // expected.num_attention_heads
    assert {each.head_dim for each in attention} <= {head_dim}
    assert {each.mask.softcap for each in attention} <= {getattr(expected, "attn_logit_softcapping", None)}
    assert bool(attention) != bool(layers_of(config, LatentAttention))
    dense = layers_of(config, Mlp)
    assert dense or case in EXPERTS
    names = ("shared_intermediate_size", "intermediate_size_mlp", "intermediate_size")  # of the dense MLPs
    intermediate = next(getattr(expected, name) for name in names if hasattr(expected, name))
    if getattr(expected, "block_auto_adjust_ff_dim", False):
        intermediate = -(-(2 * intermediate // 3) // 8) * 8
    assert {mlp.intermediate for mlp in dense} <= {intermediate}
    assert config.vocab_size == expected.vocab_size
    eps = next(getattr(expected, name) for name in EPS if hasattr(expected, name))
    # Granite's residual stream is kept divided by its factor.
    assert norm_eps(config) == eps / getattr(expected, "residual_multiplier", 1.0) ** 2
    assert config.decoder.head.tied == expected.tie_word_embeddings
    assert config.eos_token_ids == (2,)
    assert config.bos_token_id == 1
    if attention and getattr(expected, "layer_types", None) is not None:
        lengths = {name: getattr(expected, name, None) for name in ("sliding_window", "attention_chunk_size")}
        of_kind = dict(zip(("sliding_attention", "chunked_attention"), lengths.values(), strict=True))
        assert windows(config) == [of_kind.get(kind) for kind in kinds if kind not in ("linear_attention", "conv")]
    assert config.decoder.head.softcap == getattr(expected, "final_logit_softcapping", None)


EPS = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")


def norm_eps(config: ModelConfig) -> float:
    """Of all norms, those of heads too."""
    (eps,) = {norm.eps for norm in layers_of(config, Norm)}
    return eps


def test_a_multimodal_gemma_3_is_read_from_its_text_config(tmp_path: Path) -> None:
    # As published: the text part spells out only what differs from the defaults of its class.
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    folder = write(tmp_path, architectures=["Gemma3ForConditionalGeneration"], text_config=text, eos_token_id=[1, 106])
    expected = hf.Gemma3TextConfig(**text)
    config = load_model_config(folder)
    assert config.family == "gemma3"
    assert config.eos_token_ids == (1, 106)
    assert windows(config) == [1024 if kind == "sliding_attention" else None for kind in expected.layer_types]
    assert windows(config)[:6] == [1024] * 5 + [None]
    for attention in layers_of(config, Attention):
        assert (attention.query_heads, attention.kv_heads, attention.head_dim) == (8, 4, 256)
        rope = ("linear", 8.0, 1e6) if attention.mask.window is None else ("default", 1.0, 1e4)
        found = attention.rotation.rope
        assert (found.kind, found.factor, found.theta) == rope


@pytest.mark.parametrize("text", [None, False, True])
@pytest.mark.parametrize(("outer", "tied"), [(None, True), (False, False), (True, True)])
def test_a_multimodal_mistral_is_read_from_its_text_config_and_what_is_tied_from_outside(
    text: bool | None, outer: bool | None, tied: bool, tmp_path: Path
) -> None:
    values = {**LLAMA, "model_type": "mistral", "sliding_window": None, "tie_word_embeddings": text}
    inner = {key: value for key, value in values.items() if key not in ("architectures", "tie_word_embeddings")}
    if text is not None:
        inner["tie_word_embeddings"] = text
    folder = write(
        tmp_path,
        architectures=["Mistral3ForConditionalGeneration"],
        text_config=inner,
        **({} if outer is None else {"tie_word_embeddings": outer}),
    )
    config = load_model_config(folder)
    assert config.family == "mistral"
    assert config.decoder.head.tied == tied
    assert windows(config) == [None, None]


def test_ministral_3_scales_its_queries_beyond_its_first_context(tmp_path: Path) -> None:
    values = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    values["architectures"] = ["Ministral3ForCausalLM"]
    expected = hf.Ministral3Config()
    config = load_model_config(write(tmp_path, **values, num_key_value_heads=3))
    rope = the_only(config, Attention).rotation.rope
    assert (config.max_position, config.notes) == (expected.max_position_embeddings, ())
    assert rope.query_scale == query_scale(0.1, expected.rope_parameters["original_max_position_embeddings"])
    assert rope.factor == expected.rope_parameters["factor"]


def test_end_tokens_of_the_generation_config_are_added(tmp_path: Path) -> None:
    write(tmp_path, **LLAMA)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7, 9]}))
    assert load_model_config(tmp_path).eos_token_ids == (2, 7, 9)


@pytest.mark.parametrize("spelling", ["rope_type", "type"])
def test_dynamic_rope_of_hunyuan_needs_its_alpha(spelling: str, tmp_path: Path) -> None:
    values = LLAMA | {"architectures": ["HunYuanDenseV1ForCausalLM"], "head_dim": 32}
    scaling = {spelling: "dynamic", "factor": 1.0}
    config = load_model_config(write(tmp_path, **values, rope_scaling={**scaling, "alpha": 1000.0}))
    assert the_only(config, Attention).rotation.rope == RopeConfig(theta=1e4 * 1000.0 ** (32 / 30), rotary_dim=32)
    with pytest.raises(OperatorError, match="alpha is missing"):
        load_model_config(write(tmp_path, **values, rope_scaling=scaling))


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": ' * 100_000, "\x00\xff"])
def test_a_config_that_is_not_a_json_object_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(OperatorError, match=r"config\.json"):
        load_model_config(tmp_path)


@pytest.mark.parametrize("name", ["missing", "weights.bin", "empty"])
def test_a_path_that_is_no_model_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(OperatorError, match=name):
        load_model_config(tmp_path / name)


@pytest.mark.parametrize("case", ["llama-tied", "llama-untied", "qwen2"])
def test_a_gguf_file_gives_the_same_configuration_as_the_folder(case: str, tmp_path: Path) -> None:
    model = checkpoints.random_model(case)
    folder = load_model_config(checkpoints.save(model, tmp_path / "folder"))
    file = load_model_config(checkpoints.save_gguf(model, tmp_path / "model.gguf", "BF16"))
    assert norm_eps(file) == pytest.approx(norm_eps(folder))
    for field in ("architecture", "hidden_size", "num_layers", "vocab_size", "max_position", "eos_token_ids"):
        assert getattr(file, field) == getattr(folder, field)
    assert file.decoder.head.tied == folder.decoder.head.tied
    assert the_only(file, Mlp) == the_only(folder, Mlp)
    of_file, of_folder = (the_only(config, Attention) for config in (file, folder))
    # Llama's files have another order of rows.
    assert replace(of_file, rotation=of_folder.rotation) == of_folder
    assert of_file.rotation.rope == of_folder.rotation.rope
