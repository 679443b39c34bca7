"""GGUF's tensor names, put in Hugging Face's."""

from __future__ import annotations

from collections.abc import Sequence

from numaserve.workers.models.family import Family

_TOP = {"token_embd": "embed_tokens", "output_norm": "norm"}
_CORRECTION_BIAS = "exp_probs_b"
_SINKS = "attn_sinks"
_NEXT_TOKENS = "nextn."  # in the layers that predict several tokens, with names of its own below that
_EACH = "*"  # stands for the numbers of all experts, whose matrices are one tensor
_MAX_EXPERTS = 2**10


def hugging_face_name(name: str, family: Family) -> str:
    """The Hugging Face name of a GGUF tensor; an unknown name stays as it is. With "*" it is that of all experts."""
    head, _, kind = name.rpartition(".")
    if head == "output":
        return f"lm_head.{kind}"
    if head in _TOP:
        return f"model.{_TOP[head]}.{kind}"
    block, _, part = head.removeprefix("blk.").partition(".")
    if not head.startswith("blk."):
        return name
    whole = {_CORRECTION_BIAS: family.moe_names.correction_bias, _SINKS: family.names.sinks}
    if part in whole:
        return f"model.layers.{block}.{whole[part]}"
    if part.startswith(_NEXT_TOKENS):
        return f"model.layers.{block}.{part}.{kind}"
    layer_part = _layer_parts(family).get(part)
    return name if layer_part is None else f"model.layers.{block}.{layer_part}.{kind}"


def expert_names(name: str, shape: Sequence[int], family: Family) -> list[str]:
    """The Hugging Face names of all experts' parts of a GGUF tensor of `shape`, experts first; none where it is one
    tensor there too."""
    found = hugging_face_name(name, family)
    dimensions = 2 if found.endswith(".bias") else 3
    if _EACH not in found or len(shape) != dimensions or shape[0] > _MAX_EXPERTS:
        return []
    return [found.replace(_EACH, str(index)) for index in range(shape[0])]


def _layer_parts(family: Family) -> dict[str, str]:
    names, moe, latent = family.names, family.moe_names, family.mla_names
    each, shared = moe.below(f"{moe.experts}.{_EACH}"), moe.shared_mlp
    parts = {
        "attn_norm": names.input_norm,
        "attn_q": names.q,
        "attn_k": names.k,
        "attn_v": names.v,
        "attn_q_a": latent.q_a,
        "attn_q_a_norm": latent.q_a_norm,
        "attn_q_b": latent.q_b,
        "attn_kv_a_mqa": latent.kv_a,
        "attn_kv_a_norm": latent.kv_a_norm,
        "attn_kv_b": latent.kv_b,
        "attn_k_b": latent.k_b,
        "attn_v_b": latent.v_b,
        "attn_output": names.o,
        "attn_q_norm": names.q_norm,
        "attn_k_norm": names.k_norm,
        "ffn_norm": names.mlp_norm,
        "ffn_gate": names.gate,
        "ffn_up": names.up,
        "ffn_down": names.down,
        "ffn_gate_inp": moe.router,
        "ffn_gate_exps": each.gate,
        "ffn_up_exps": each.up,
        "ffn_down_exps": each.down,
        "ffn_gate_inp_shexp": moe.shared_gate,
        "ffn_gate_shexp": shared.gate,
        "ffn_up_shexp": shared.up,
        "ffn_down_shexp": shared.down,
        # Where it is the only norm there, as in gpt-oss, it is the MLP's.
        "post_attention_norm": names.post_attention_norm or names.mlp_norm,
        "post_ffw_norm": names.post_mlp_norm,
        "attn_qkv": names.q if names.q == names.k else "",
    }
    return {part: name for part, name in parts.items() if name}
