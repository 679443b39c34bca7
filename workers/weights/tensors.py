"""Which tensors a checkpoint of a model has to hold, and with which shapes; checked before anything is packed."""

from __future__ import annotations

import re
from collections.abc import Collection

from numaserve.workers.errors import OperatorError
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig, MoeConfig
from numaserve.workers.models.stored import GGUF_BLOCKS
from numaserve.workers.weights.quantized.layouts import parts_of
from numaserve.workers.weights.quantized.parts import FLOAT_DTYPES, Part
from numaserve.workers.weights.source import RawTensor, TensorSource

Shape = tuple[int, ...]
# Buffers that old checkpoints carry although they follow from the configuration.
_BUFFERS = re.compile(r"\.rotary_emb\.(inv_freq|cos_cached|sin_cached)$")


def find_prefix(names: Collection[str], family: Family) -> str:
    """What stands before the names of the language model's tensors in this checkpoint."""
    for prefix in family.prefixes:
        if f"{prefix}embed_tokens.weight" in names:
            return prefix
    raise OperatorError(f"the checkpoint has no tensor {family.prefixes[0]}embed_tokens.weight; fetch it again")


def lm_head_name(names: Collection[str], prefix: str) -> str:
    """The output matrix's module: multimodal checkpoints nest it beside the language model."""
    nested = f"{prefix.removesuffix('model.')}lm_head"
    return nested if any(name.startswith(f"{nested}.") for name in names) else "lm_head"


def layer_shapes(config: ModelConfig, family: Family, moe: MoeConfig | None) -> dict[str, Shape]:
    """Name within a layer, which is a mixture of experts with `moe`, to shape. Tensors that share a name lie below each
    other."""
    names, hidden = family.names, config.hidden_size
    mlps = family.mlps(config, moe)
    parts = family.attention_matrices(config)
    parts += [(name, (rows, hidden)) for mlp, rows in mlps for name in (mlp.gate, mlp.up)]
    stacked: dict[str, int] = {}
    for name, (rows, _) in parts:
        stacked[name] = stacked.get(name, 0) + rows
    shapes: dict[str, Shape] = {f"{name}.weight": (stacked[name], columns) for name, (_, columns) in parts}
    shapes[f"{names.o}.weight"] = (hidden, config.num_qo_heads * config.head_dim)
    shapes |= {f"{mlp.down}.weight": (hidden, rows) for mlp, rows in mlps}
    if moe is not None:
        shapes |= _routing_shapes(config, family, moe)
        if moe.expert_bias:
            shapes |= {f"{name}.bias": (stacked[name],) for mlp, _ in mlps for name in (mlp.gate, mlp.up)}
            shapes |= {f"{mlp.down}.bias": (hidden,) for mlp, _ in mlps}
    norms = [names.input_norm, names.mlp_norm]
    if config.post_norms:
        norms += [names.post_attention_norm, names.post_mlp_norm]
    shapes |= {f"{name}.weight": (hidden,) for name in norms}
    if config.qk_norm:
        shapes |= {f"{name}.weight": (config.head_dim,) for name in (names.q_norm, names.k_norm)}
    if config.mla is not None:
        shapes[f"{family.mla_names.kv_a_norm}.weight"] = (config.mla.kv_lora_rank,)
        if config.mla.q_lora_rank is not None:
            shapes[f"{family.mla_names.q_a_norm}.weight"] = (config.mla.q_lora_rank,)
    if config.qkv_bias:
        shapes |= {f"{name}.bias": (stacked[name],) for name in (names.q, names.k, names.v)}
    if config.attention_output_bias:
        shapes[f"{names.o}.bias"] = (hidden,)
    if config.attention_sinks:
        shapes[names.sinks] = (config.num_qo_heads,)
    return shapes


def _routing_shapes(config: ModelConfig, family: Family, moe: MoeConfig) -> dict[str, Shape]:
    names = family.moe_names
    shapes: dict[str, Shape] = {f"{names.router}.weight": (moe.num_experts, config.hidden_size)}
    if moe.shared_gate:
        shapes[f"{names.shared_gate}.weight"] = (1, config.hidden_size)
    if moe.router_bias:
        shapes[f"{names.router}.bias"] = (moe.num_experts,)
    if moe.correction_bias:
        shapes[names.correction_bias] = (moe.num_experts,)
    return shapes


def check_tensors(source: TensorSource, config: ModelConfig, family: Family, prefix: str) -> None:
    """Compare a checkpoint with its configuration.

    Raises `OperatorError` naming tensors that are missing, that have another shape, or that nothing would use: a
    tensor left out silently would give wrong answers.
    """
    found = source.names()
    lm_head = lm_head_name(found, prefix)
    plain, parts = _expected(config, family, prefix, lm_head)
    missing = [name for name in plain if name not in found]
    missing += [name for name, part in parts.items() if part.required and name not in found]
    if missing:
        raise OperatorError(f"the checkpoint lacks {_some(missing)}; it does not fit its configuration, fetch it again")
    unused = [
        name
        for name in found
        if name not in plain
        and name not in parts
        and not name.startswith(f"{lm_head}.")
        and not _is_harmless(name, config, family, prefix)
        and not _is_zero_bias(name, source, parts)
    ]
    if unused:
        raise OperatorError(
            f"the checkpoint holds {_some(unused)}, which {config.architecture} as configured does not use; "
            "this variant is not supported"
        )
    for name, shape in plain.items():
        # A matrix may be of any type that the source hands out: others than those of a GGUF file have parts.
        _check_plain(source.tensor(name), shape)
    for name, part in parts.items():
        if name in found:
            part.check(source.part(name))


def _check_plain(tensor: RawTensor, shape: Shape) -> None:
    if tensor.shape != shape:
        raise OperatorError(
            f"{tensor.label} has shape {list(tensor.shape)}, the configuration asks for {list(shape)}; "
            "fetch the checkpoint again"
        )
    if len(shape) == 1 and tensor.dtype not in FLOAT_DTYPES:
        raise OperatorError(
            f"{tensor.label} is {tensor.dtype}, norms and biases are {', '.join(FLOAT_DTYPES)}; "
            "fetch the checkpoint again"
        )


def _expected(
    config: ModelConfig, family: Family, prefix: str, lm_head: str
) -> tuple[dict[str, Shape], dict[str, Part]]:
    """Tensors of numbers, and those of quantised matrices."""
    plain: dict[str, Shape] = {f"{prefix}norm.weight": (config.hidden_size,)}
    parts: dict[str, Part] = {}

    def expect(name: str, key: str, shape: Shape) -> None:
        stored = config.stored.get(key.removesuffix(".weight"))
        if stored is None or stored.layout in GGUF_BLOCKS or len(shape) != 2:
            plain[name] = shape
            return
        module = name.removesuffix(".weight")
        parts.update({f"{module}.{suffix}": part for suffix, part in parts_of(stored, *shape).items()})

    matrix = (config.vocab_size, config.hidden_size)
    expect(f"{prefix}embed_tokens.weight", "embed_tokens", matrix)
    if not config.tie_word_embeddings:
        expect(f"{lm_head}.weight", "lm_head", matrix)
    shapes = {moe: layer_shapes(config, family, moe) for moe in {None, config.moe}}
    for layer in range(config.num_layers):
        for name, shape in shapes[config.moe_of(layer)].items():
            expect(f"{prefix}layers.{layer}.{name}", f"layers.{layer}.{name}", shape)
    return plain, parts


def _is_zero_bias(name: str, source: TensorSource, parts: Collection[str]) -> bool:
    """AutoGPTQ gives every module a bias, of zeros where the model has none."""
    module = name.removesuffix(".bias")
    if module == name or not any(f"{module}.{suffix}" in parts for suffix in ("qweight", "weight_packed", "weight")):
        return False
    tensor = source.tensor(name)
    return len(tensor.shape) == 1 and not tensor.data.any()


def _is_harmless(name: str, config: ModelConfig, family: Family, prefix: str) -> bool:
    unused = tuple(f"{prefix}layers.{config.num_layers + index}." for index in range(config.mtp_layers))
    return _BUFFERS.search(name) is not None or name.startswith((*family.ignored_prefixes, *unused))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name[:100] for name in names[:3]) + more
