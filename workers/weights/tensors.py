"""Which tensors a checkpoint of a model has to hold, and with which shapes; checked before anything is packed."""

from __future__ import annotations

import re
from collections.abc import Collection

from numaserve.workers.errors import OperatorError
from numaserve.workers.models.family import Family
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.weights.source import TensorSource

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
    """The output matrix's name: multimodal checkpoints nest it beside the language model."""
    nested = f"{prefix.removesuffix('model.')}lm_head.weight"
    return nested if nested in names else "lm_head.weight"


def layer_shapes(config: ModelConfig, family: Family) -> dict[str, Shape]:
    """Name within a layer to shape. Tensors that share a name lie below each other."""
    names, hidden, inter = family.names, config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_qo_heads * config.head_dim, config.num_kv_heads * config.head_dim
    stacked: dict[str, int] = {}
    for name, rows in (
        (names.q, q_rows),
        (names.k, kv_rows),
        (names.v, kv_rows),
        (names.gate, inter),
        (names.up, inter),
    ):
        stacked[name] = stacked.get(name, 0) + rows
    shapes: dict[str, Shape] = {f"{name}.weight": (rows, hidden) for name, rows in stacked.items()}
    shapes[f"{names.o}.weight"] = (hidden, q_rows)
    shapes[f"{names.down}.weight"] = (hidden, inter)
    norms = [names.input_norm, names.mlp_norm]
    if config.post_norms:
        norms += [names.post_attention_norm, names.post_mlp_norm]
    shapes |= {f"{name}.weight": (hidden,) for name in norms}
    if config.qk_norm:
        shapes |= {f"{name}.weight": (config.head_dim,) for name in (names.q_norm, names.k_norm)}
    if config.qkv_bias:
        shapes |= {f"{name}.bias": (stacked[name],) for name in (names.q, names.k, names.v)}
    if config.attention_output_bias:
        shapes[f"{names.o}.bias"] = (hidden,)
    return shapes


def check_tensors(source: TensorSource, config: ModelConfig, family: Family, prefix: str) -> None:
    """Compare a checkpoint with its configuration.

    Raises `OperatorError` naming tensors that are missing, that have another shape, or that nothing would use: a
    tensor left out silently would give wrong answers.
    """
    found = source.names()
    matrix = (config.vocab_size, config.hidden_size)
    expected: dict[str, Shape] = {f"{prefix}embed_tokens.weight": matrix, f"{prefix}norm.weight": (config.hidden_size,)}
    in_layer = layer_shapes(config, family)
    for layer in range(config.num_layers):
        expected |= {f"{prefix}layers.{layer}.{name}": shape for name, shape in in_layer.items()}
    lm_head = lm_head_name(found, prefix)
    if not config.tie_word_embeddings:
        expected[lm_head] = matrix
    missing = [name for name in expected if name not in found]
    if missing:
        raise OperatorError(f"the checkpoint lacks {_some(missing)}; it does not fit its configuration, fetch it again")
    unused = [name for name in found if name not in expected and name != lm_head and not _is_harmless(name, family)]
    if unused:
        raise OperatorError(
            f"the checkpoint holds {_some(unused)}, which {config.architecture} as configured does not use; "
            "this variant is not supported"
        )
    for name, shape in expected.items():
        tensor = source.tensor(name)
        if tensor.shape != shape:
            raise OperatorError(
                f"tensor {tensor.name} has shape {list(tensor.shape)}, the configuration asks for {list(shape)}; "
                "fetch the checkpoint again"
            )


def _is_harmless(name: str, family: Family) -> bool:
    return _BUFFERS.search(name) is not None or name.startswith(family.ignored_prefixes)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name[:100] for name in names[:3]) + more
