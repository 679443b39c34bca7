"""The shape of LFM2: gated short convolutions in most layers, attention in the others.

The sizes are those of the published model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_HEADS, _KV_HEADS, _HEAD_DIM = 32, 8, 64
_TAPS = 3

Tensors = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Lfm2Shape:
    """Sizes of a model of LFM2's family; `attends` has the layers with attention."""

    hidden: int
    layers: int
    attends: tuple[int, ...]
    intermediate: int
    vocab: int = 65536
    context: int = 128000
    tied: bool = True

    def config(self) -> dict[str, Any]:
        """The fields of its config.json."""
        return {
            "architectures": ["Lfm2ForCausalLM"],
            "model_type": "lfm2",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": _KV_HEADS,
            "layer_types": ["full_attention" if n in self.attends else "conv" for n in range(self.layers)],
            "full_attn_idxs": self.attends,
            "conv_L_cache": _TAPS,
            "conv_dim": self.hidden,
            "conv_bias": False,
            "intermediate_size": self.intermediate,
            "block_auto_adjust_ff_dim": False,
            "norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "torch_dtype": "bfloat16",
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of its tensors."""
        whole: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (self.vocab, self.hidden),
            "embedding_norm.weight": (self.hidden,),
        }
        for layer in range(self.layers):
            whole |= {f"layers.{layer}.{name}.weight": shape for name, shape in self._layer(layer)}
        return {f"model.{name}": shape for name, shape in whole.items()}

    def _layer(self, layer: int) -> Tensors:
        if layer in self.attends:
            yield from self._attention()
        else:
            yield "conv.in_proj", (3 * self.hidden, self.hidden)
            yield "conv.conv", (self.hidden, 1, _TAPS)
            yield "conv.out_proj", (self.hidden, self.hidden)
        yield from ((f"feed_forward.{part}", (self.intermediate, self.hidden)) for part in ("w1", "w3"))
        yield "feed_forward.w2", (self.hidden, self.intermediate)
        yield from ((norm, (self.hidden,)) for norm in ("operator_norm", "ffn_norm"))

    def _attention(self) -> Tensors:
        yield "self_attn.q_proj", (_HEADS * _HEAD_DIM, self.hidden)
        yield from ((f"self_attn.{part}_proj", (_KV_HEADS * _HEAD_DIM, self.hidden)) for part in "kv")
        yield "self_attn.out_proj", (self.hidden, _HEADS * _HEAD_DIM)
        yield from ((f"self_attn.{part}_layernorm", (_HEAD_DIM,)) for part in "qk")


LFM2_SHAPES = {"lfm2-1.2b": Lfm2Shape(2048, 16, (2, 5, 8, 10, 12, 14), 8192)}
