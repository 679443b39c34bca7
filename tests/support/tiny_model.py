"""A model folder that is complete and whose weights are all zero, made in a few milliseconds."""

import json
import math
import struct
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

HIDDEN = 64


def config(vocabulary: int) -> dict[str, object]:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": vocabulary,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def tensors(vocabulary: int) -> dict[str, list[int]]:
    """Names and shapes."""
    layer, matrix = "model.layers.0.", [HIDDEN, HIDDEN]
    attention = {f"{layer}self_attn.{name}_proj.weight": matrix for name in "qkvo"}
    mlp = {f"{layer}mlp.{name}_proj.weight": matrix for name in ("gate", "up", "down")}
    norms = [f"{layer}input_layernorm.weight", f"{layer}post_attention_layernorm.weight", "model.norm.weight"]
    return attention | mlp | {name: [HIDDEN] for name in norms} | {"model.embed_tokens.weight": [vocabulary, HIDDEN]}


def write_safetensors(path: Path, shapes: dict[str, list[int]], dtype: str = "BF16") -> None:
    """A safetensors file of zeros, which take no room on the disk; `dtype` has two bytes."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def write_words(folder: Path, vocabulary: int) -> None:
    """A tokenizer of the words w0, w1, ... without a chat template."""
    tokenizer = tokenizers.Tokenizer(
        models.WordLevel({f"w{index}": index for index in range(vocabulary)}, unk_token="w0")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")


def write_folder(folder: Path, vocabulary: int = 1000) -> Path:
    """A model with the tokenizer of `write_words`."""
    folder.mkdir(exist_ok=True)
    write_words(folder, vocabulary)
    (folder / "config.json").write_text(json.dumps(config(vocabulary)))
    write_safetensors(folder / "model.safetensors", tensors(vocabulary))
    return folder


def give_response_template(folder: Path, template: object) -> None:
    """Let the model have a chat template that writes tools in no known way, and this response template."""
    chat = "{{ tools }}{% for message in messages %}{{ message.content }} {% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": chat, "response_template": template}))


def divide(folder: Path, vocabulary: int = 1000) -> Path:
    """The same model with its tensors in two files and an index."""
    (folder / "model.safetensors").unlink()
    names = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    shapes = tensors(vocabulary)
    where = {tensor: names[index % 2] for index, tensor in enumerate(shapes)}
    for name in names:
        write_safetensors(folder / name, {tensor: shapes[tensor] for tensor in where if where[tensor] == name})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder
