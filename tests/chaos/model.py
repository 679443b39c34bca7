"""A small model with random weights, a byte-level tokenizer and a chat template with tools, made in a moment.

Torch would take seconds to import, which is a part of the time that a short run has.
"""

import json
import math
import struct
from pathlib import Path

import numpy as np

from tests.support import tokenizer_builders

MODEL, DRAFT = "model", "draft"  # their folders, and so their names
HIDDEN = 128
_FEED_FORWARD = 256
_LAYERS = {MODEL: 4, DRAFT: 1}
_HEADS, _KV_HEADS, _HEAD_SIZE = 4, 2, 32
CONTEXT = 2048

_TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call these functions. Answer with <tool_call>{"name": "...", "arguments": {...}}</tool_call>.
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def write_model(place: Path, name: str = MODEL) -> Path:
    """Write the model, or its draft model, into a folder in `place`, the same one each time; returns that folder."""
    folder, layers = place / name, _LAYERS[name]
    folder.mkdir()
    tokenizer = tokenizer_builders.byte_level_backend()
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": _FEED_FORWARD,
        "num_hidden_layers": layers,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_SIZE,
        "vocab_size": vocabulary,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.token_to_id("<s>"),
        "eos_token_id": tokenizer.token_to_id("</s>"),
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_weights(folder / "model.safetensors", _shapes(vocabulary, layers))
    return folder


def _shapes(vocabulary: int, layers: int) -> dict[str, list[int]]:
    """Names and shapes of the tensors."""
    keys = _KV_HEADS * _HEAD_SIZE
    found = {"model.embed_tokens.weight": [vocabulary, HIDDEN], "lm_head.weight": [vocabulary, HIDDEN]}
    for index in range(layers):
        layer = f"model.layers.{index}."
        found |= {f"{layer}self_attn.{name}_proj.weight": [HIDDEN, HIDDEN] for name in "qo"}
        found |= {f"{layer}self_attn.{name}_proj.weight": [keys, HIDDEN] for name in "kv"}
        found |= {f"{layer}mlp.{name}_proj.weight": [_FEED_FORWARD, HIDDEN] for name in ("gate", "up")}
        found[f"{layer}mlp.down_proj.weight"] = [HIDDEN, _FEED_FORWARD]
        found |= {f"{layer}{name}_layernorm.weight": [HIDDEN] for name in ("input", "post_attention")}
    return found | {"model.norm.weight": [HIDDEN]}


def _write_weights(path: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file: norms of ones, and matrices that keep the size of what they multiply."""
    rng = np.random.default_rng(0)
    header, body = {}, b""
    for name, shape in shapes.items():
        values = np.ones(shape) if len(shape) == 1 else rng.normal(0, 1 / math.sqrt(shape[1]), shape)
        data = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
