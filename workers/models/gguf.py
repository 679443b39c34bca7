"""Reads a model's configuration from a GGUF file's metadata.

The metadata is converted to the fields of Hugging Face's config.json and then mapped by the family, so that each family
has one mapping and one set of checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nextafter
from typing import TYPE_CHECKING

import numpy as np
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.decoder import Decoder
from numaserve.workers.layers.stored import GGUF_BLOCKS, Stored
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.models.config.gguf_classifier import RANK, check_judge, classifier_values, has_classifier
from numaserve.workers.models.config.gguf_names import PREFIX, GgufNames, shape_of
from numaserve.workers.models.config.gguf_projector import (
    as_in_projector,
    processor_fields,
    projector_type,
    with_projector,
)
from numaserve.workers.models.config.huggingface import MAX_LAYERS
from numaserve.workers.models.family import GgufForm
from numaserve.workers.models.registry import gguf_family
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.program.ops.rows import Pooling

if TYPE_CHECKING:
    from gguf import ReaderTensor
    from numaserve.workers.models.config.gguf_file import GGUFFile
    from numaserve.workers.models.config.gguf_parts import GGUFModel, GGUFPart

# GGUF's key after "<architecture>." to config.json's.
_KEYS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.causal": "is_causal",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "hidden_activation": "hidden_activation",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
}


# As numbered by llama.cpp. Where a file states none, a model has the pooling of its family.
_POOLINGS: dict[int | None, Pooling] = {1: "mean", 2: "cls", 3: "last"}
_UNTURNED = 1e30  # the divisor of frequencies that are 0


def gguf_config(model: GGUFModel) -> ModelConfig:
    """Return the configuration of a GGUF model. Raises `OperatorError` as `read_config` does."""
    path = model.parts[0].path
    file, tensors = model.metadata, [tensor for tensor, _ in model.tensors]
    name = file.scalar("general.architecture")
    if not isinstance(name, str):
        raise OperatorError(f"{path}: general.architecture is missing; the file is not a language model")
    metadata = _metadata(model.parts[0])
    projector = model.projector
    family = gguf_family(name, metadata, "" if projector is None else str(projector_type(projector.file)))
    assert family.gguf is not None  # noqa: S101  found by its GGUF form
    values = _as_config_json(file, tensors, metadata, family.gguf)
    fields = Fields(values, str(path))
    if projector is not None:
        fields = with_projector(fields, file, _metadata(projector), projector.file)
    config = family.config_of(fields, family.gguf.classifier if fields.has("id2label") else family.architectures[0])
    present = {tensor.name for tensor in tensors}
    # For some models, conversion leaves out the layers that predict.
    decoder = (config if any(".nextn.eh_proj." in name for name in present) else config.unpredicted()).decoder
    in_folder = replace(config, decoder=decoder)
    decoder = decoder.in_gguf(family.gguf.pairs, present)
    if not config.labels:
        decoder = _with_pooling(decoder, metadata)
        if _pooling_type(metadata) == RANK:
            check_judge(file, {tensor.name: tensor for tensor in tensors}, metadata)
    if projector is not None and decoder.tower is not None:
        by_name = {tensor.name: tensor for tensor in projector.file.tensors}
        decoder = replace(decoder, tower=as_in_projector(decoder.tower, by_name))
    if projector is not None and family.images is not None:
        processor = processor_fields(projector.file, _metadata(projector))
        config = replace(config, images=family.images(fields, processor, config))
    stored = _stored(tensors, decoder, config.skipped_layers)
    in_file = replace(config, decoder=decoder, prefixes=(PREFIX,), aliases=(), saved_as=(), stored=stored)
    return replace(in_file, in_folder=in_folder)


def _metadata(part: GGUFPart) -> Fields:
    return Fields({key: part.file.scalar(key) for key in part.file.fields}, str(part.path))


def _with_pooling(decoder: Decoder, metadata: Fields) -> Decoder:
    """Return the decoder with the pooling that the file states, if it states one."""
    kind = _pooling_type(metadata)
    if kind == RANK and decoder.head is None:
        raise metadata.error(
            "pooling_type is rank, but the file has no classification head that is supported; supported are rerankers"
            " of the architectures bert and modern-bert. Serve the original checkpoint"
        )
    return replace(decoder, pooling=_POOLINGS[kind]) if kind in _POOLINGS else decoder


def _pooling_type(metadata: Fields) -> int | None:
    return metadata.optional_integer(f"{metadata.text('general.architecture')}.pooling_type", 0, RANK)


def _stored(tensors: Sequence[ReaderTensor], decoder: Decoder, skipped: int) -> dict[str, Stored]:
    """Return the matrices in block formats. Unsupported formats are reported when they are read."""
    names, stored = GgufNames(decoder, skipped), dict[str, Stored]()
    for tensor in tensors:
        block = GGUF_BLOCKS.get(tensor.tensor_type.name.lower())
        if block is not None:
            found, _ = names.find(tensor.name, shape_of(tensor))
            stored.update((each.removeprefix(PREFIX).removesuffix(".weight"), block) for each in found)
    return stored


def _as_config_json(
    file: GGUFFile, found: Sequence[ReaderTensor], metadata: Fields, form: GgufForm
) -> dict[str, object]:
    name = metadata.text("general.architecture")
    tensors = {tensor.name: tensor for tensor in found}
    if "token_embd.weight" not in tensors:
        raise metadata.error("tensor token_embd.weight is missing; the file is not a language model")
    values: dict[str, object] = {
        key: value for source, key in _KEYS.items() if (value := file.scalar(f"{name}.{source}")) is not None
    }
    slides = values.get("sliding_window_pattern")
    if isinstance(slides, list):
        del values["sliding_window_pattern"]
        values["layer_types"] = ["sliding_attention" if each else "full_attention" for each in slides]
    values["use_qk_norm"] = "blk.0.attn_q_norm.weight" in tensors
    values["attention_k_eq_v"] = any(
        tensor.endswith(".attn_k.weight") and tensor.replace("_k.", "_v.") not in tensors for tensor in tensors
    )
    blocks = metadata.integer(f"{name}.block_count", 1, MAX_LAYERS)
    values["mlp_layer_types"] = [
        "sparse" if f"blk.{block}.ffn_gate_inp.weight" in tensors else "dense" for block in range(blocks)
    ]
    types = tensors.get("token_types.weight")
    values["type_vocab_size"] = 0 if types is None else int(types.shape[-1])
    values |= form.values(metadata, values)
    values["vocab_size"] = int(tensors["token_embd.weight"].shape[-1])
    values["tie_word_embeddings"] = "output.weight" not in tensors
    values["attention_bias"] = "blk.0.attn_q.bias" in tensors
    values["eos_token_id"] = _end_ids(file)
    values["bos_token_id"] = file.scalar("tokenizer.ggml.bos_token_id")
    fields = Fields(values, metadata.where)
    hidden = fields.integer("hidden_size", 1, 2**17)
    if form.classifier and has_classifier(tensors, _pooling_type(metadata)):
        values |= classifier_values(file, tensors, metadata, hidden)
    heads = fields.integer("num_attention_heads", 1, 2**10)
    head_dim = fields.integer("head_dim", 1, 2**10, max(1, hidden // heads))
    widest = fields.integer("global_head_dim", 1, 2**10, head_dim)
    if form.equal_value_length:
        metadata.refuse(f"{name}.attention.value_length", widest)
    rotary = metadata.integer(f"{name}.rope.dimension_count", 1, widest, widest)
    values["partial_rotary_factor"] = rotary / widest
    values["rope_scaling"] = _rope_scaling(tensors, metadata, form, rotary)
    return values


def _end_ids(file: GGUFFile) -> list[object]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [file.scalar(f"tokenizer.ggml.{key}") for key in keys]
    return list(dict.fromkeys(item for item in ids if item is not None))


def _rope_scaling(
    tensors: Mapping[str, ReaderTensor], metadata: Fields, form: GgufForm, rotary: int
) -> dict[str, object] | None:
    name = metadata.text("general.architecture")
    scaling = f"{name}.rope.scaling"
    length = metadata.values.get(f"{name}.context_length")
    original = metadata.values.get(f"{scaling}.original_context_length") or length
    attention_factor = metadata.values.get(f"{scaling}.attn_factor")
    if (factors := _factors(tensors, "rope_freqs.weight", rotary)) is not None:
        turning = [factor for factor in factors if factor < _UNTURNED]
        if len(turning) < len(factors):
            # The next larger number: products with the number of pairs are rounded down.
            return {"rope_type": "proportional", "partial_rotary_factor": nextafter(len(turning) / len(factors), 2.0)}
        # Llama 3's scaling comes as the divisor of each frequency: longrope with one set of factors.
        return _longrope(factors, factors, original, 1.0)
    long = _factors(tensors, "rope_factors_long.weight", rotary)
    short = _factors(tensors, "rope_factors_short.weight", rotary)
    if long is not None and short is not None:
        return _longrope(short, long, original, attention_factor)
    kind = metadata.text(f"{scaling}.type", "none")
    if kind == "none":
        return None
    return {
        **form.rope(metadata),
        "rope_type": kind,
        "factor": metadata.values.get(f"{scaling}.factor"),
        "original_max_position_embeddings": original,
        "beta_fast": metadata.values.get(f"{scaling}.yarn_beta_fast"),
        "beta_slow": metadata.values.get(f"{scaling}.yarn_beta_slow"),
    }


def _longrope(short: list[float], long: list[float], original: object, attention_factor: object) -> dict[str, object]:
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
        "attention_factor": attention_factor,
    }


def _factors(tensors: Mapping[str, ReaderTensor], name: str, rotary: int) -> list[float] | None:
    tensor = tensors.get(name)
    if tensor is None or tensor.data.dtype != np.float32 or tensor.data.shape != (rotary // 2,):
        return None
    factors: list[float] = tensor.data.tolist()
    return factors
