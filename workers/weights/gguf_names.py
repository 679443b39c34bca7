"""GGUF's tensor names, put in Hugging Face's."""

from __future__ import annotations

from numaserve.workers.models.family import LayerNames

_TOP = {"token_embd": "embed_tokens", "output_norm": "norm"}


def hugging_face_name(name: str, names: LayerNames) -> str:
    """The Hugging Face name of a GGUF tensor in a family whose layers use `names`; an unknown name stays as it is."""
    head, _, kind = name.rpartition(".")
    if head == "output":
        return f"lm_head.{kind}"
    if head in _TOP:
        return f"model.{_TOP[head]}.{kind}"
    block, _, part = head.removeprefix("blk.").partition(".")
    layer_part = _layer_parts(names).get(part)
    if not head.startswith("blk.") or layer_part is None:
        return name
    return f"model.layers.{block}.{layer_part}.{kind}"


def _layer_parts(names: LayerNames) -> dict[str, str]:
    parts = {
        "attn_norm": names.input_norm,
        "attn_q": names.q,
        "attn_k": names.k,
        "attn_v": names.v,
        "attn_output": names.o,
        "attn_q_norm": names.q_norm,
        "attn_k_norm": names.k_norm,
        "ffn_norm": names.mlp_norm,
        "ffn_gate": names.gate,
        "ffn_up": names.up,
        "ffn_down": names.down,
        "post_attention_norm": names.post_attention_norm,
        "post_ffw_norm": names.post_mlp_norm,
        "attn_qkv": names.q if names.q == names.k else "",
    }
    return {part: name for part, name in parts.items() if name}
