"""GGUF files of the tiny encoders, as llama.cpp's converter writes them from published checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import tokenizers
import transformers as hf
from safetensors.torch import load_file

from tests.support import encoders
from tests.support.gguf_files import Array, add, finish
from tests.support.gguf_tokenizers import add_wordpiece

_BERT = gguf.MODEL_ARCH.BERT
ARCHITECTURES = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": _BERT,
    "modernbert": gguf.MODEL_ARCH.MODERN_BERT,
    "nomic-bert": gguf.MODEL_ARCH.NOMIC_BERT,
    "eurobert": gguf.MODEL_ARCH.EUROBERT,
    "embedding-gemma": gguf.MODEL_ARCH.GEMMA_EMBEDDING,
}
# What the converter calls the parts of classification heads, of which it leaves out poolers. Newer versions of the
# package than this one have names for those of ModernBERT.
_HEADS = {
    "classifier.dense": "cls",
    "pre_classifier": "cls",
    "head.dense": "cls",
    "head.norm": "cls.norm",
    "classifier.out_proj": "cls.output",
    "classifier": "cls.output",
}
CLASSIFIERS = ("roberta", "xlm-roberta", "distilbert", "modernbert")
_POSITIONS = "embeddings.position_embeddings.weight"


def save_gguf(
    name: str,
    model: hf.PreTrainedModel,
    folder: Path,
    kind: str = "BF16",
    pooling: gguf.PoolingType | None = None,
    tokenizer: tokenizers.Tokenizer | None = None,
    labels: Sequence[str] = (),
) -> Path:
    """Write the encoder `name` into `folder`, with matrices of `kind`, and its pooling, tokenizer and labels if there
    are such."""
    encoders.save(name, model, folder)
    config, architecture = model.config, ARCHITECTURES[name]
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    # Padding's positions are cut off.
    shift = config.pad_token_id + 1 if "roberta" in name else 0
    _add_metadata(writer, name, config, shift)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    if labels:
        writer.add_classifier_output_labels(labels)
    if tokenizer is not None:
        add_wordpiece(writer, tokenizer, lowercase=True)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for saved, tensor in load_file(folder / "model.safetensors").items():
        module = saved.removeprefix(f"{model.base_model_prefix}.").removeprefix("bert.")
        if module.startswith(("pooler.", "decoder.")):
            continue  # embeddings do not need it, and files of BERT's classifiers lack it
        array = tensor.float().numpy()
        parent, _, last = module.rpartition(".")
        if parent in _HEADS:
            _add_tensor(writer, f"{_HEADS[parent]}.{last}", array, kind)
            continue
        if module == _POSITIONS:
            array = array[shift:]
        if name == "embedding-gemma":
            array = array + module.endswith("norm.weight")
        found = names.get_name(module, (".weight", ".bias")) or names.get_name(f"model.{module}", (".weight", ".bias"))
        assert found is not None, module
        _add_tensor(writer, found, array, kind)
    finish(writer)
    return path


def _add_tensor(writer: gguf.GGUFWriter, name: str, array: Array, kind: str) -> None:
    is_plain = array.ndim == 1 or name in ("position_embd.weight", "token_types.weight")
    add(writer, name, array, "F32" if is_plain else kind)


def _add_metadata(writer: gguf.GGUFWriter, name: str, config: hf.PreTrainedConfig, shift: int) -> None:
    values: dict[str, Any] = config.to_dict()
    writer.add_context_length(config.max_position_embeddings - shift)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.hidden_dim if name == "distilbert" else config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if "num_key_value_heads" in values:
        writer.add_head_count_kv(values["num_key_value_heads"])
    if "rms_norm_eps" in values:
        writer.add_layer_norm_rms_eps(values["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(values.get("layer_norm_eps", values.get("norm_eps", 1e-12)))
    writer.add_causal_attention(False)
    ropes = values.get("rope_parameters") or {}
    full = ropes.get("full_attention", ropes)
    if full:
        writer.add_rope_freq_base(full["rope_theta"])
    if "sliding_attention" in ropes:
        writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    if name == "modernbert":
        writer.add_sliding_window(values["local_attention"])
        writer.add_sliding_window_pattern(3)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        pooling = {"cls": gguf.PoolingType.CLS, "mean": gguf.PoolingType.MEAN}[config.classifier_pooling]
        writer.add_uint32("modern-bert.classifier.pooling_type", pooling)
    if name == "embedding-gemma":
        writer.add_sliding_window(values["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if name == "eurobert":
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
