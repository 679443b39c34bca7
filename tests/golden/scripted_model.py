"""A checkpoint that writes a known text, chunk by chunk, so that real servers answer with calls and reasoning.

Every chunk of a text is a token, and the last token alone decides the next one: a token's embedding is one dimension of
the hidden state, and the head has a column for each dimension. The layer adds nothing.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.golden.scripts import SCRIPTS, Script
from tests.support.tokenizer_builders import byte_level_backend

CALL, ANSWER = "<call>", "<answer>"  # the tokens that a prompt ends with, and that the two texts follow
_ROLES = tuple(f"<{role}>" for role in ("system", "user", "assistant", "tool"))
_HEAD_DIM = 32
_TEMPLATE = """{%- for tool in tools or [] %}<system>{{ tool | tojson }}{% endfor %}
{%- for message in messages %}<{{ message.role }}>{{ message.reasoning_content }}{{ message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{% endfor %}
{%- if add_generation_prompt %}
{%- if messages[-1].role == 'tool' or (enable_thinking is defined and not enable_thinking) %}<answer>
{%- else %}<call>{% endif %}{% endif %}"""


def write_scripted(name: str, folder: Path) -> None:
    """Write the checkpoint of one of `SCRIPTS` into `folder`."""
    script = SCRIPTS[name]
    backend = byte_level_backend()
    chunks = sorted({chunk for text in script.texts for chunk in text} - {*script.special_tokens, "</s>"})
    backend.add_tokens(chunks)
    backend.add_special_tokens([CALL, ANSWER, *_ROLES, *script.special_tokens])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": f"{{# {script.marks} #}}{_TEMPLATE}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    following = _following(script, backend.token_to_id)
    size = -(-backend.get_vocab_size() // 32) * 32
    hidden = -(-(len(following) + 1) // 64) * 64
    (folder / "config.json").write_text(json.dumps(_config(size, hidden)))
    save_file(_tensors(following, size, hidden), folder / "model.safetensors", {"format": "pt"})


def _following(script: Script, token_of: Callable[[str], int | None]) -> dict[int, int]:
    """Return the token after each token."""
    following: dict[int, int] = {}
    for start, text in zip((CALL, ANSWER), script.texts, strict=True):
        tokens = [found for each in (start, *text) if (found := token_of(each)) is not None]
        assert len(tokens) == len(text) + 1, text
        for token, after in pairwise(tokens):
            assert following.setdefault(token, after) == after, f"two chunks follow {token} in {text}"
    return following


def _config(vocabulary: int, hidden: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": hidden // _HEAD_DIM,
        "num_key_value_heads": hidden // _HEAD_DIM,
        "vocab_size": vocabulary,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def _tensors(following: dict[int, int], vocabulary: int, hidden: int) -> dict[str, torch.Tensor]:
    embedding = torch.zeros(vocabulary, hidden)
    head = torch.randn(vocabulary, hidden, generator=torch.Generator().manual_seed(0)) * 0.3
    embedding[:, 0] = 1.0
    for dimension, (token, after) in enumerate(following.items(), 1):
        embedding[token, 0], embedding[token, dimension] = 0.0, 1.0
        head[after, dimension] = 8.0
    layer, one = "model.layers.0.", torch.ones(hidden)
    shapes = {f"self_attn.{each}_proj": (hidden, hidden) for each in "qkvo"}
    shapes |= {"mlp.gate_proj": (64, hidden), "mlp.up_proj": (64, hidden), "mlp.down_proj": (hidden, 64)}
    tensors = {f"{layer}{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    norms = (f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm")
    tensors |= {f"{name}.weight": one.clone() for name in norms}
    tensors |= {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    return {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
