"""Shapes of Gemma 4 E2B and E4B: layers with inputs of their own, of which the last share keys and values.

The sizes are those of the published text models, without their towers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_HEADS, _HEAD_DIM, _FULL_HEAD_DIM = 8, 256, 512
_INPUTS = 256  # columns of a layer's inputs

Tensors = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Gemma4Shape:
    """Sizes of a model of Gemma 4's family. Every `full_every`th layer sees all tokens."""

    hidden: int
    layers: int
    kv_heads: int
    intermediate: int
    shared: int  # layers without keys and values of their own, whose MLPs may be twice as wide
    wide: bool
    full_every: int
    vocab: int = 262144
    context: int = 131072
    tied: bool = True

    def config(self) -> dict[str, Any]:
        """The fields of its config.json."""
        return {
            "architectures": ["Gemma4ForCausalLM"],
            "model_type": "gemma4_text",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": self.kv_heads,
            "head_dim": _HEAD_DIM,
            "global_head_dim": _FULL_HEAD_DIM,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "vocab_size_per_layer_input": self.vocab,
            "hidden_size_per_layer_input": _INPUTS,
            "num_kv_shared_layers": self.shared,
            "use_double_wide_mlp": self.wide,
            "layer_types": ["full_attention" if self.is_full(n) else "sliding_attention" for n in range(self.layers)],
            "sliding_window": 512,
            "final_logit_softcapping": 30.0,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
        }

    def is_full(self, layer: int) -> bool:
        """Whether a layer sees all tokens."""
        return (layer + 1) % self.full_every == 0

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of its tensors."""
        inputs = self.layers * _INPUTS
        whole: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (self.vocab, self.hidden),
            "embed_tokens_per_layer.weight": (self.vocab, inputs),
            "per_layer_model_projection.weight": (inputs, self.hidden),
            "per_layer_projection_norm.weight": (_INPUTS,),
            "norm.weight": (self.hidden,),
        }
        for layer in range(self.layers):
            whole |= {f"layers.{layer}.{name}": shape for name, shape in self._layer(layer)}
        return {f"model.{name}": shape for name, shape in whole.items()}

    def _layer(self, layer: int) -> Tensors:
        is_shared = layer >= self.layers - self.shared
        dim = _FULL_HEAD_DIM if self.is_full(layer) else _HEAD_DIM
        width = self.intermediate * (2 if is_shared and self.wide else 1)
        yield "self_attn.q_proj.weight", (_HEADS * dim, self.hidden)
        yield "self_attn.q_norm.weight", (dim,)
        if not is_shared:
            yield from ((f"self_attn.{part}_proj.weight", (self.kv_heads * dim, self.hidden)) for part in "kv")
            yield "self_attn.k_norm.weight", (dim,)
        yield "self_attn.o_proj.weight", (self.hidden, _HEADS * dim)
        yield from ((f"mlp.{part}_proj.weight", (width, self.hidden)) for part in ("gate", "up"))
        yield "mlp.down_proj.weight", (self.hidden, width)
        yield "per_layer_input_gate.weight", (_INPUTS, self.hidden)
        yield "per_layer_projection.weight", (self.hidden, _INPUTS)
        places = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        norms = (*(f"{place}_layernorm" for place in places), "post_per_layer_input_norm")
        yield from ((f"{norm}.weight", (self.hidden,)) for norm in norms)
        yield "layer_scalar", (1,)


GEMMA4_SHAPES = {
    "gemma4-e2b": Gemma4Shape(1536, 35, 1, 6144, shared=20, wide=True, full_every=5),
    "gemma4-e4b": Gemma4Shape(2560, 42, 2, 10240, shared=18, wide=False, full_every=6),
}
