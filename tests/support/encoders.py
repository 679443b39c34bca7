"""Tiny random encoders, saved as published ones are, and their embeddings by transformers."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from tests.support.launches import count
from tests.support.sentence_folder import write_modules

VOCAB = 211
POSITIONS = 150  # of which RoBERTa leaves two out
# Odd sizes: rows and columns that fill no tile, and heads that ranks divide unevenly.
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 136,
    "max_position_embeddings": POSITIONS,
}
_DISTILBERT = {
    "vocab_size": VOCAB,
    "dim": 72,
    "n_layers": 3,
    "n_heads": 6,
    "hidden_dim": 136,
    "max_position_embeddings": POSITIONS,
}
# Windows of 20 tokens on either side.
_MODERNBERT = {"local_attention": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | dict.fromkeys(
    ("cls_token_id", "sep_token_id"), 1
)
# In the published form: rope_theta is 20000, scaled by a factor of 8 of type ntk.
_GTE_ROPE = {"rope_type": "linear", "rope_theta": 8 * 20000.0, "factor": 8 ** (2 / 12)}
# Decoders whose tokens see later ones too; windows are of 20 tokens on either side.
_DECODER: dict[str, Any] = _SIZES | {"num_key_value_heads": 2, "is_causal": False, "tie_word_embeddings": False}
_SLIDING = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GEMMA = {
    "use_bidirectional_attention": True,
    "sliding_window": 40,  # on both sides together
    "sliding_window_pattern": 3,
    "num_key_value_heads": 3,
    "head_dim": 20,
    "query_pre_attn_scalar": 20,
}
CONFIGS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "bert": lambda: hf.BertConfig(**_SIZES),
    "roberta": lambda: hf.RobertaConfig(**_SIZES, pad_token_id=1, type_vocab_size=1),
    "xlm-roberta": lambda: hf.XLMRobertaConfig(**_SIZES, pad_token_id=1, type_vocab_size=1),
    "distilbert": lambda: hf.DistilBertConfig(**_DISTILBERT),
    "modernbert": lambda: hf.ModernBertConfig(**_SIZES, **_MODERNBERT),
    "nomic-bert": lambda: hf.NomicBertConfig(**_SIZES),
    "nomic-bert-renamed": lambda: hf.NomicBertConfig(**_SIZES),
    "gte": lambda: hf.GteConfig(**_SIZES, rope_parameters=_GTE_ROPE),
    "gte-renamed": lambda: hf.GteConfig(**_SIZES, type_vocab_size=0),
    "eurobert": lambda: hf.EuroBertConfig(**_SIZES, **_TOKENS, num_key_value_heads=3),
    "llama": lambda: hf.LlamaConfig(**_DECODER),
    "qwen2": lambda: hf.Qwen2Config(**_DECODER, **_SLIDING),
    "qwen3": lambda: hf.Qwen3Config(**_DECODER, head_dim=20),
    "embedding-gemma": lambda: hf.Gemma3TextConfig(**_SIZES, **_GEMMA),
}
ARCHITECTURES = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "distilbert": "DistilBertModel",
    "modernbert": "ModernBertModel",
    "nomic-bert": "NomicBertModel",
    "nomic-bert-renamed": "NomicBertModel",
    "gte": "NewModel",
    "gte-renamed": "GteModel",
    "eurobert": "EuroBertModel",
    "llama": "LlamaBidirectionalModel",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3Model",
    "embedding-gemma": "Gemma3TextModel",
}
_DECODERS = ("llama", "qwen2", "qwen3", "embedding-gemma")
# Encoders that are saved with the names of transformers, and not with those of the published checkpoints.
_RENAMED = ("nomic-bert-renamed", "gte-renamed")


def _nomic_bert(values: dict[str, Any]) -> dict[str, Any]:
    """The config.json of nomic-ai/nomic-embed-text-v1.5, with these sizes."""
    return {
        "architectures": values["architectures"],
        "model_type": "nomic_bert",
        "vocab_size": values["vocab_size"],
        "type_vocab_size": values["type_vocab_size"],
        "n_embd": values["hidden_size"],
        "n_head": values["num_attention_heads"],
        "n_layer": values["num_hidden_layers"],
        "n_inner": values["intermediate_size"],
        "n_positions": values["max_position_embeddings"],
        "max_trained_positions": values["max_position_embeddings"] // 2,
        "layer_norm_epsilon": values["layer_norm_eps"],
        "rotary_emb_base": values["rope_parameters"]["rope_theta"],
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "activation_function": "swiglu",
        "causal": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
    } | {name: values[name] for name in ("id2label",) if name in values}


def _gte(values: dict[str, Any]) -> dict[str, Any]:
    """The config.json of Alibaba-NLP/gte-multilingual-base, with these sizes."""
    architecture = values["architectures"][0].replace("Gte", "New")
    return {name: value for name, value in values.items() if name != "rope_parameters"} | {
        "architectures": [architecture],
        "model_type": "new",
        "layer_norm_type": "layer_norm",
        "logn_attention_clip1": False,
        "logn_attention_scale": False,
        "pack_qkv": True,
        "position_embedding_type": "rope",
        "rope_scaling": {"factor": 8.0, "type": "ntk"},
        "rope_theta": 20000,
    }


def _llama(values: dict[str, Any]) -> dict[str, Any]:
    """The config.json of nvidia/llama-nemotron-embed-1b-v2, with these sizes, or that of a model with a head."""
    if values["architectures"] == ["LlamaForCausalLM"]:
        return values
    left = {name: value for name, value in values.items() if name != "is_causal"}
    return left | {"architectures": ["LlamaBidirectionalModel"], "model_type": "llama_bidirec", "pooling": "avg"}


_PUBLISHED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "nomic-bert": _nomic_bert,
    "gte": _gte,
    "llama": _llama,
}
CONTEXT = POSITIONS - 2
CLASSIFIERS = (  # with heads of their own
    *("bert", "xlm-roberta", "distilbert", "modernbert"),
    *("nomic-bert", "nomic-bert-renamed", "gte", "gte-renamed"),
)


def config_values(name: str) -> dict[str, Any]:
    """The config.json of an encoder, as it is published."""
    values = CONFIGS[name]().to_dict() | {"architectures": [ARCHITECTURES[name]]}
    return _PUBLISHED.get(name, dict)(values)


def random_encoder(name: str, *, masked: bool = False, **sizes: Any) -> hf.PreTrainedModel:
    """A random encoder in fp32, whose values bf16 has; `masked`: with the head that it was trained with. `sizes` are
    fields of the configuration."""
    config = CONFIGS[name]()
    config.update(sizes)
    with_head = hf.AutoModelForCausalLM if name in _DECODERS else hf.AutoModelForMaskedLM
    return _random(with_head if masked else hf.AutoModel, config)


def random_classifier(name: str, labels: int = 1, **sizes: int) -> hf.PreTrainedModel:
    """The same with a head that classifies, whose logits are about as large as those of trained ones."""
    config = CONFIGS[name]()
    config.update(sizes)
    config.num_labels = labels
    return _random(hf.AutoModelForSequenceClassification, config)


def random_splade(name: str, **values: Any) -> hf.PreTrainedModel:
    """The same with the head of a masked language model, whose logits are as large as those of SPLADE models: the
    maxima over a text are below zero for a part of the vocabulary."""
    model = random_encoder(name, masked=True, **values)
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.weight.mul_(2.0 ** torch.round(torch.log2(0.1 / head.weight.std())))
        head.bias.sub_(torch.quantile(torch.from_numpy(maxima(model, texts(3))), 0.3))
        head.bias.copy_(head.bias.to(torch.bfloat16))
    return model


def _random(made: Any, config: hf.PreTrainedConfig) -> hf.PreTrainedModel:
    model = made.from_config(config, attn_implementation="eager").float()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                value = 0.2 * noise + module.endswith("orm.weight")
            else:
                # A little less than what keeps the variance: the rounding of fp8 would grow from layer to layer.
                value = noise if "embed" in module else 0.9 * noise * parameter.shape[-1] ** -0.5
            parameter.copy_(value.to(torch.bfloat16).float())
    return model.eval()


# Beginnings of names in published checkpoints with a head, where those of transformers are others.
_PREFIXES = {"nomic-bert": ("nomic_bert.", "bert."), "gte": ("gte.", "new.")}


def save(name: str, model: hf.PreTrainedModel, folder: Path, pooling: str | None = None) -> Path:
    """Write a checkpoint in bf16, with the modules of sentence-transformers where there is a `pooling`."""
    count("checkpoints")
    model.to(torch.bfloat16).save_pretrained(folder, save_original_format=name not in _RENAMED)
    model.float()
    if name in _PREFIXES:
        tensors = load_file(folder / "model.safetensors")
        renamed, published = _PREFIXES[name]
        save_file(
            {re.sub(f"^{re.escape(renamed)}", published, each): tensor for each, tensor in tensors.items()},
            folder / "model.safetensors",
        )
    config = folder / "config.json"
    config.write_text(json.dumps(_PUBLISHED.get(name, dict)(json.loads(config.read_text()))))
    if pooling is not None:
        write_modules(folder, pooling={"pooling_mode": "lasttoken" if pooling == "last" else pooling})
    return folder


def texts(count: int, longest: int = CONTEXT) -> list[list[int]]:
    """Random prompts of 1 to `longest` tokens, the last one that long. Token 1 is RoBERTa's padding."""
    rng = np.random.default_rng(4)
    lengths = [*rng.integers(1, longest, count - 1).tolist(), longest]
    return [rng.integers(2, VOCAB, length).tolist() for length in lengths]


def hidden_states(model: hf.PreTrainedModel, prompts: Sequence[list[int]]) -> list[torch.Tensor]:
    """The last hidden states of each prompt, alone, fp64 [tokens, hidden]."""
    with torch.inference_mode():
        return [model.base_model(torch.tensor([prompt])).last_hidden_state[0].double() for prompt in prompts]


def logits(model: hf.PreTrainedModel, prompts: Sequence[list[int]], second: Sequence[int] = ()) -> Any:
    """The logits of each prompt, alone, fp64 [prompts, labels]; from its position `second` on tokens are of type 1,
    unless that is 0."""
    found = []
    with torch.inference_mode():
        for index, prompt in enumerate(prompts):
            at = second[index] if second else 0
            types = {"token_type_ids": torch.tensor([[int(0 < at <= i) for i in range(len(prompt))]])} if at else {}
            found.append(model(torch.tensor([prompt]), **types).logits[0].double())
    return torch.stack(found).numpy()


def maxima(model: hf.PreTrainedModel, prompts: Sequence[list[int]]) -> npt.NDArray[np.float64]:
    """The maxima over the tokens of each prompt, alone, of the logits of a masked language model, fp64 [prompts,
    vocabulary]."""
    with torch.inference_mode():
        found = [model(torch.tensor([prompt])).logits[0].double().amax(0) for prompt in prompts]
    return torch.stack(found).numpy()


_POOLINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(0),
    "max": lambda states: states.amax(0),
    "last": lambda states: states[-1],
}


def pooled(states: Sequence[torch.Tensor], pooling: str) -> npt.NDArray[np.float64]:
    """The vectors of prompts with these hidden states, [prompts, hidden]."""
    return torch.stack([_POOLINGS[pooling](each) for each in states]).numpy()
