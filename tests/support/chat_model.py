"""A small model with random weights, a byte-level tokenizer and a chat template with tools, made in a moment.

Torch would take seconds to import, which is a part of the time that a short run has.
"""

import json
import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.support import tokenizer_builders
from tests.support.launches import count

MODEL, DRAFT = "model", "draft"  # their folders, and so their names
# Model types: attention alone, recurrent layers before every other one, and a window in every other one.
LLAMA, HYBRID, SLIDING = "llama", "qwen3_5_text", "smollm3"
FAMILIES = {HYBRID: "Qwen3_5ForCausalLM", LLAMA: "LlamaForCausalLM", SLIDING: "SmolLM3ForCausalLM"}
HIDDEN = 128
FEED_FORWARD = 256
LAYERS = {MODEL: 4, DRAFT: 1}
_HEADS, _KV_HEADS, _HEAD_SIZE = 4, 2, 32
CONTEXT = 2048
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
_DELTA_KEYS, _DELTA_VALUES = 2 * 16, 4 * 32
_FORGETFUL = -4.0  # biases of decays, with which a state remembers some fifty tokens

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


def write_model(place: Path, name: str = MODEL, family: str = LLAMA, feed_forward: int = FEED_FORWARD) -> Path:
    """Write the model, or its draft model, into a folder in `place`, the same one each time; returns that folder."""
    folder, layers = place / name, LAYERS[name]
    count("checkpoints")
    folder.mkdir()
    tokenizer = tokenizer_builders.byte_level_backend()
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    config = {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "hidden_size": HIDDEN,
        "intermediate_size": feed_forward,
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
    if family == HYBRID:
        config |= _DELTA | {"full_attention_interval": 2}
    if family == SLIDING:
        kinds = ["sliding_attention", "full_attention"] * layers
        config |= {"sliding_window": 64, "use_sliding_window": True, "layer_types": kinds[:layers]}
    (folder / "config.json").write_text(json.dumps(config))
    _write_weights(folder / "model.safetensors", _shapes(vocabulary, layers, family, feed_forward))
    return folder


def _shapes(vocabulary: int, layers: int, family: str, feed_forward: int) -> dict[str, list[int]]:
    """Names and shapes of the tensors."""
    found = {"model.embed_tokens.weight": [vocabulary, HIDDEN], "lm_head.weight": [vocabulary, HIDDEN]}
    for index in range(layers):
        mixer = _attention(gated=family == HYBRID) if family != HYBRID or index % 2 else _delta()
        layer = f"model.layers.{index}."
        found |= {layer + name: shape for name, shape in mixer.items()}
        found |= {f"{layer}mlp.{name}_proj.weight": [feed_forward, HIDDEN] for name in ("gate", "up")}
        found[f"{layer}mlp.down_proj.weight"] = [HIDDEN, feed_forward]
        found |= {f"{layer}{name}_layernorm.weight": [HIDDEN] for name in ("input", "post_attention")}
    return found | {"model.norm.weight": [HIDDEN]}


def _attention(*, gated: bool) -> dict[str, list[int]]:
    keys = _KV_HEADS * _HEAD_SIZE
    found = {f"self_attn.{name}_proj.weight": [keys, HIDDEN] for name in "kv"}
    found |= {"self_attn.q_proj.weight": [HIDDEN * (1 + gated), HIDDEN], "self_attn.o_proj.weight": [HIDDEN, HIDDEN]}
    return found | {f"self_attn.{name}_norm.weight": [_HEAD_SIZE] for name in "qk" if gated}


def _delta() -> dict[str, list[int]]:
    convolved, heads = 2 * _DELTA_KEYS + _DELTA_VALUES, _DELTA["linear_num_value_heads"]
    rows = {"qkv": convolved, "z": _DELTA_VALUES, "b": heads, "a": heads}
    found = {f"linear_attn.in_proj_{name}.weight": [count, HIDDEN] for name, count in rows.items()}
    return found | {
        "linear_attn.out_proj.weight": [HIDDEN, _DELTA_VALUES],
        "linear_attn.conv1d.weight": [convolved, 1, _DELTA["linear_conv_kernel_dim"]],
        "linear_attn.norm.weight": [_DELTA["linear_value_head_dim"]],
        "linear_attn.A_log": [heads],
        "linear_attn.dt_bias": [heads],
    }


def _write_weights(path: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file: norms of ones, decays that forget slowly, and matrices that keep the size of their inputs."""
    rng = np.random.default_rng(0)
    header, body = {}, b""
    for name, shape in shapes.items():
        values = _vector(name, shape) if len(shape) == 1 else rng.normal(0, 1 / math.sqrt(shape[-1]), shape)
        data = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def _vector(name: str, shape: list[int]) -> npt.NDArray[np.float64]:
    special = {"A_log": 0.0, "dt_bias": _FORGETFUL}
    return np.full(shape, special.get(name.rsplit(".", 1)[-1], 1.0))
