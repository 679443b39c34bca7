"""Checkpoints with a layer that predicts the token after the next (MTP), which transformers has no class for.

Tensors are named as in DeepSeek-V3's and GLM-4.5's checkpoints, and in those after it, or as in Qwen3.5's.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support import checkpoints
from tests.support.same_bits import tiny_model

Tensors = dict[str, torch.Tensor]
START = 0  # the token that `save_twin`'s sequences begin with
PREDICTOR = "model.layers.2."  # before the names of its tensors
_LAST = "model.layers.1."
_MADE_LAST = (
    "self_attn.o_proj.weight",
    "linear_attn.out_proj.weight",
    "down_proj.weight",
    "down_proj",
)  # ends of names
_QWEN_NAMES = {
    f"{PREDICTOR}eh_proj.": "mtp.fc.",
    f"{PREDICTOR}enorm.": "mtp.pre_fc_norm_embedding.",
    f"{PREDICTOR}hnorm.": "mtp.pre_fc_norm_hidden.",
    f"{PREDICTOR}shared_head.norm.": "mtp.norm.",
    PREDICTOR: "mtp.layers.0.",
}


def save_predicting(
    name: str, folder: Path, changed: Callable[[Tensors], None] | None = None, **fields: object
) -> Path:
    """A tiny model of a dense layer, one of experts, and a random one that predicts; its tensors may be `changed`."""
    checkpoints.save(tiny_model(name, **fields), folder)
    return add_predictor(name, folder, changed=changed)


def add_predictor(name: str, folder: Path, last: str = _LAST, changed: Callable[[Tensors], None] | None = None) -> Path:
    """Add a random layer that predicts, made of the layer `last`, to a saved model; its tensors may be `changed`."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    generator = torch.Generator().manual_seed(1)
    block = {each: tensor for each, tensor in tensors.items() if each.startswith(last)}
    hidden = len(block[f"{last}input_layernorm.weight"])
    for each, tensor in block.items():
        copied = tensor[torch.randperm(len(tensor), generator=generator)] if tensor.ndim > 1 else tensor.clone()
        tensors[each.replace(last, PREDICTOR)] = copied.contiguous()
    projection = torch.randn(hidden, 2 * hidden, generator=generator) * (2 * hidden) ** -0.5
    tensors[f"{PREDICTOR}eh_proj.weight"] = projection.to(torch.bfloat16)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        weight = _one(name) + 0.1 * torch.randn(hidden, generator=generator)
        tensors[f"{PREDICTOR}{norm}.weight"] = weight.to(torch.bfloat16)
    if not is_qwen(name):  # copies of what is the model's, which published checkpoints have
        tensors[f"{PREDICTOR}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{PREDICTOR}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    if changed is not None:
        changed(tensors)
    if is_qwen(name):
        tensors = {_renamed(each, _QWEN_NAMES): tensor for each, tensor in tensors.items()}
    save_file(tensors, file, {"format": "pt"})
    config = folder / "config.json"
    key = "mtp_num_hidden_layers" if is_qwen(name) else "num_nextn_predict_layers"
    fields = json.loads(config.read_text())
    text = fields.get("text_config", fields)
    text[key] = 1
    text.pop("mlp_layer_types", None)  # which published checkpoints leave out
    config.write_text(json.dumps(fields))
    return folder


def is_qwen(name: str) -> bool:
    """Whether a model's layer that predicts is named as in Qwen3.5's checkpoints."""
    return name.startswith(("qwen3_5", "qwen3_next"))


def as_layers(tensors: Tensors) -> Tensors:
    """The tensors with the names that the layer that predicts would have as one more layer."""
    back = {saved: declared for declared, saved in _QWEN_NAMES.items()}
    return {_renamed(name, back): each for name, each in tensors.items()}


def _renamed(name: str, names: dict[str, str]) -> str:
    found = (new + name.removeprefix(old) for old, new in names.items() if name.startswith(old))
    return next(found, name)


def save_twin(name: str, folder: Path) -> Path:
    """A model whose predictor computes from the tokens what the model computes, to the last bit.

    Embeddings are of ones and minus ones, which a norm leaves as they are; that of `START` is zero, as is that of no
    token. A token that the predictor lacks, or has read in another place, shows in its draft tokens.
    """

    def changed(tensors: Tensors) -> None:
        for each in [each for each in tensors if each.startswith(_LAST)]:
            tensors[each.replace(_LAST, PREDICTOR)] = tensors[each].clone()
        _silence(tensors, "model.layers.0.")
        embedding = tensors["model.embed_tokens.weight"]
        embedding.copy_(torch.where(embedding > 0, 1.0, -1.0))
        embedding[START] = 0.0
        hidden = embedding.shape[1]
        _set_norms(tensors, hidden, _one(name))
        tensors[f"{PREDICTOR}shared_head.norm.weight"] = tensors["model.norm.weight"].clone()
        tensors[f"{PREDICTOR}eh_proj.weight"].copy_(torch.eye(hidden, 2 * hidden))

    return save_predicting(name, folder, changed)


def save_follower(name: str, folder: Path) -> Path:
    """A model that says the tokens in a fixed order, and whose predictor goes by hidden states alone.

    Hidden states say which token it was, and the layers nothing more. A hidden state of another token shows in a draft
    token.
    """

    def changed(tensors: Tensors) -> None:
        vocabulary, hidden = tensors["model.embed_tokens.weight"].shape
        following = torch.eye(hidden)[torch.randperm(vocabulary, generator=torch.Generator().manual_seed(2))]
        tensors["model.embed_tokens.weight"].copy_(torch.eye(vocabulary, hidden))
        tensors["lm_head.weight"].copy_(following)
        tensors["model.norm.weight"].fill_(_one(name))
        _set_norms(tensors, hidden, _one(name))
        tensors[f"{PREDICTOR}eh_proj.weight"].copy_(torch.cat([torch.zeros(hidden, hidden), following], 1))
        _silence(tensors, "")

    return save_predicting(name, folder, changed, vocab_size=96)


def _silence(tensors: Tensors, layer: str) -> None:
    """Let a layer, or all of them, add nothing to the residual stream."""
    for each, tensor in tensors.items():
        if each.startswith(layer) and each.endswith(_MADE_LAST):
            tensor.zero_()


def _one(name: str) -> float:
    """The weight of a norm that only norms, as the checkpoint has it."""
    return 0.0 if is_qwen(name) else 1.0


def _set_norms(tensors: Tensors, hidden: int, one: float) -> None:
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{PREDICTOR}{norm}.weight"] = torch.full((hidden,), one, dtype=torch.bfloat16)
