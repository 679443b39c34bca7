"""Shapes of Qwen3.5 and Qwen3.6: three layers with a gated delta net, then one with gated attention, and so on.

The sizes are those of the published text models, without their vision towers and prediction layers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_INTERVAL = 4
_HEAD_DIM = 256  # of attention
_KEY_HEADS, _DELTA_DIM, _TAPS = 16, 128, 4  # of the gated delta net
_ROPE = {
    "rope_type": "default",
    "rope_theta": 10_000_000,
    "partial_rotary_factor": 0.25,
    "mrope_section": [11, 11, 10],
    "mrope_interleaved": True,
}

Tensors = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class ExpertSizes:
    """A mixture of experts with a shared expert of the same width."""

    count: int
    top_k: int
    intermediate: int


@dataclass(frozen=True)
class HybridShape:
    """Sizes of a model of Qwen3.5's family. `mlp` is the intermediate width, or the experts."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    value_heads: int  # of the gated delta net
    mlp: int | ExpertSizes
    tied: bool = False
    vocab: int = 248320
    context: int = 262144

    def config(self) -> dict[str, Any]:
        """The fields of its config.json."""
        kind = "Qwen3_5" if isinstance(self.mlp, int) else "Qwen3_5Moe"
        layers = ["linear_attention" if self.is_recurrent(layer) else "full_attention" for layer in range(self.layers)]
        return {
            "architectures": [f"{kind}ForCausalLM"],
            "model_type": "qwen3_5_text" if isinstance(self.mlp, int) else "qwen3_5_moe_text",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": _HEAD_DIM,
            "attn_output_gate": True,
            "full_attention_interval": _INTERVAL,
            "layer_types": layers,
            "linear_conv_kernel_dim": _TAPS,
            "linear_key_head_dim": _DELTA_DIM,
            "linear_value_head_dim": _DELTA_DIM,
            "linear_num_key_heads": _KEY_HEADS,
            "linear_num_value_heads": self.value_heads,
            **self._mlp_fields(),
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-6,
            "rope_parameters": _ROPE,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        }

    def is_recurrent(self, layer: int) -> bool:
        """Return whether a layer has a gated delta net."""
        return (layer + 1) % _INTERVAL != 0

    def _mlp_fields(self) -> dict[str, int]:
        if isinstance(self.mlp, int):
            return {"intermediate_size": self.mlp}
        return {
            "num_experts": self.mlp.count,
            "num_experts_per_tok": self.mlp.top_k,
            "moe_intermediate_size": self.mlp.intermediate,
            "shared_expert_intermediate_size": self.mlp.intermediate,
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of its tensors."""
        whole: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for index in range(self.layers):
            mixer = self._delta_net() if self.is_recurrent(index) else self._attention()
            for part in (mixer, self._mlp()):
                whole |= {f"model.layers.{index}.{name}": shape for name, shape in part}
            for norm in ("input_layernorm", "post_attention_layernorm"):
                whole[f"model.layers.{index}.{norm}.weight"] = (self.hidden,)
        head = {} if self.tied else {"lm_head.weight": (self.vocab, self.hidden)}
        return whole | {"model.norm.weight": (self.hidden,)} | head

    def _delta_net(self) -> Tensors:
        values = self.value_heads * _DELTA_DIM
        convolved = 2 * _KEY_HEADS * _DELTA_DIM + values
        rows = {"qkv": convolved, "z": values, "b": self.value_heads, "a": self.value_heads}
        for name, count in rows.items():
            yield f"linear_attn.in_proj_{name}.weight", (count, self.hidden)
        yield "linear_attn.conv1d.weight", (convolved, 1, _TAPS)
        for name in ("A_log", "dt_bias"):
            yield f"linear_attn.{name}", (self.value_heads,)
        yield "linear_attn.norm.weight", (_DELTA_DIM,)
        yield "linear_attn.out_proj.weight", (self.hidden, values)

    def _attention(self) -> Tensors:
        rows = {"q_proj": 2 * self.heads, "k_proj": self.kv_heads, "v_proj": self.kv_heads}  # queries have gates
        for name, heads in rows.items():
            yield f"self_attn.{name}.weight", (heads * _HEAD_DIM, self.hidden)
        for name in ("q_norm", "k_norm"):
            yield f"self_attn.{name}.weight", (_HEAD_DIM,)
        yield "self_attn.o_proj.weight", (self.hidden, self.heads * _HEAD_DIM)

    def _mlp(self) -> Tensors:
        if isinstance(self.mlp, int):
            yield from self._dense("mlp", self.mlp)
            return
        count, width = self.mlp.count, self.mlp.intermediate
        yield "mlp.gate.weight", (count, self.hidden)
        yield "mlp.experts.gate_up_proj", (count, 2 * width, self.hidden)
        yield "mlp.experts.down_proj", (count, self.hidden, width)
        yield from self._dense("mlp.shared_expert", width)
        yield "mlp.shared_expert_gate.weight", (1, self.hidden)

    def _dense(self, name: str, width: int) -> Tensors:
        yield f"{name}.gate_proj.weight", (width, self.hidden)
        yield f"{name}.up_proj.weight", (width, self.hidden)
        yield f"{name}.down_proj.weight", (self.hidden, width)


_A3B = ExpertSizes(256, 8, 512)
HYBRID_SHAPES = {
    "qwen3.5-0.8b": HybridShape(1024, 24, 8, 2, 16, 3584, tied=True),
    "qwen3.5-9b": HybridShape(4096, 32, 16, 4, 32, 12288),
    "qwen3.5-27b": HybridShape(5120, 64, 24, 4, 48, 17408),
    "qwen3.6-35b-a3b": HybridShape(2048, 40, 16, 2, 32, _A3B),
    "qwen3.6-35b-a3b-8-layers": HybridShape(2048, 8, 16, 2, 32, _A3B),  # all experts, and a fifth of the layers
}
