"""What each matrix of a rank is kept in. Pure: the plan counts with it what the loader then packs.

A matrix takes the format it is published in where that can be divided at this rank's columns. One that is made of
several published ones takes the narrowest that holds all of them exactly: codes of 4 bits are codes of 8 bits too,
and bf16 takes anything else that does not agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from numaserve.workers.errors import OperatorError
from numaserve.workers.models.family import MlpNames
from numaserve.workers.models.registry import FAMILIES
from numaserve.workers.models.spec import MlaConfig, ModelConfig, MoeConfig
from numaserve.workers.models.stored import ROW, Stored
from numaserve.workers.settings import WeightFormat, WeightFormats

if TYPE_CHECKING:
    from numaserve.workers.weights.sharding import Shard

Offsets = Literal["none", "zeros", "minima"]
KeptFormat = WeightFormat | Literal["mxfp4"]  # nothing is quantised to mxfp4 while loading

GROUPS = (128, 64, 32)
GROUPED: frozenset[WeightFormat] = frozenset({"int4", "int8_group", "fp8"})
LM_HEAD, EMBEDDING = "lm_head", "embed_tokens"
# Of weights that are quantised while loading: in 4 bits smaller groups lose less than their scales cost.
_OWN_GROUP: dict[WeightFormat, int] = {"int4": 32}


@dataclass(frozen=True)
class MatrixFormat:
    """What a packed matrix is made with; `group` is 0 for formats without groups."""

    format: KeptFormat = "bf16"
    group: int = 0
    offsets: Offsets = "none"


BF16 = MatrixFormat()
# Of what is absorbed in multi-head latent attention, whatever the other matrices are quantised to: in 8 bits and groups
# it loses nothing that would show, in 4 bits, in e4m3 or with activations in int8 5 to 10 % more than all others lose
# together; and it is a few percent of a model.
_ABSORBED = MatrixFormat("int8_group", GROUPS[0])


@dataclass(frozen=True)
class MlpFormats:
    """The matrices of a gated MLP."""

    gate_up: MatrixFormat
    down: MatrixFormat


@dataclass(frozen=True)
class MoeFormats:
    """The matrices of a mixture of experts; the router is bf16."""

    moe: MoeConfig
    experts: MlpFormats  # of each routed one: they are one product of one operand
    shared: MlpFormats


@dataclass(frozen=True)
class MlaFormats:
    """The matrices of multi-head latent attention."""

    qkv_a: MatrixFormat
    q_b: MatrixFormat | None
    w_uk: MatrixFormat
    w_uv: MatrixFormat


@dataclass(frozen=True)
class LayerFormats:
    """The matrices of one layer."""

    qkv: MatrixFormat | MlaFormats
    o: MatrixFormat
    mlp: MlpFormats | MoeFormats


def layer_formats(config: ModelConfig, formats: WeightFormats, shard: Shard, layer: int) -> LayerFormats:
    """The formats of a rank's part of `layer`. Raises `OperatorError` where a quantised checkpoint is wanted in another
    format than it has."""
    family, at, moe = FAMILIES[config.family], f"layers.{layer}.", config.moe_of(layer)
    names = family.names

    def of(*modules: str, first_col: int = 0) -> MatrixFormat:
        # Hundreds of experts are stored in one or two ways, which are objects that they share.
        stored = {id(found): found for found in (config.stored.get(at + name) for name in modules)}
        return _choose(formats.linear, list(stored.values()), first_col, bool(config.stored))

    def mlp(columns: range, *mlps: MlpNames) -> MlpFormats:
        gate_up = of(*(name for each in mlps for name in (each.gate, each.up)))
        return MlpFormats(gate_up, of(*(each.down for each in mlps), first_col=columns.start))

    return LayerFormats(
        qkv=of(names.q, names.k, names.v) if config.mla is None else _mla_formats(config, config.mla, at, of),
        o=of(names.o, first_col=shard.q_heads.start * config.head_dim),
        mlp=mlp(shard.intermediate, names.mlp)
        if moe is None
        else MoeFormats(
            moe,
            experts=mlp(shard.expert_intermediate, *family.moe_names.routed(moe.num_experts)),
            shared=mlp(shard.shared_intermediate, family.moe_names.shared_mlp),
        ),
    )


def _mla_formats(config: ModelConfig, mla: MlaConfig, at: str, of: Callable[..., MatrixFormat]) -> MlaFormats:
    family, has_latent = FAMILIES[config.family], mla.q_lora_rank is not None
    names = family.mla_names
    keys, values = (names.k_b, names.v_b) if mla.split_kv_b else (names.kv_b, names.kv_b)
    w_uk, w_uv = (_absorbed(of(name), config.stored.get(at + name)) for name in (keys, values))
    if not mla.split_kv_b:
        w_uk = _turned(w_uk, config.stored.get(at + keys), mla.nope_dim + config.head_dim)
    return MlaFormats(
        qkv_a=of(names.kv_a, names.q_a if has_latent else family.names.q),
        q_b=of(names.q_b) if has_latent else None,
        w_uk=w_uk,
        w_uv=w_uv,
    )


def lm_head_format(config: ModelConfig, formats: WeightFormats) -> MatrixFormat:
    """The format of the output head. Raises `OperatorError` as `layer_formats` does."""
    stored = config.stored.get(EMBEDDING if config.tie_word_embeddings else LM_HEAD)
    return _choose(formats.lm_head, [stored], 0, stored is not None)


def has_own_lm_head(config: ModelConfig, formats: WeightFormats) -> bool:
    """Whether the head is another matrix in memory than the embedding, which is bf16 always."""
    return not config.tie_word_embeddings or lm_head_format(config, formats) != BF16


def cut_of(config: ModelConfig, parts: int, columns: int, down: Sequence[str]) -> int:
    """At whose multiples the `columns` of an MLP are best divided into `parts`: the groups that the checkpoint has in
    the modules `down` of a layer, or pieces of them where whole ones would divide it unevenly."""
    modules = (f"layers.{layer}.{name}" for layer in range(config.num_layers) for name in down) if config.stored else ()
    groups = {stored.group for stored in map(config.stored.get, modules) if stored is not None} - {ROW}
    for cut in GROUPS:
        if groups and all(group % cut == 0 for group in groups) and columns >= 8 * parts * cut:
            return cut
    return GROUPS[-1]


def _choose(
    asked: WeightFormat | None, stored: Sequence[Stored | None], first_col: int, is_quantized: bool
) -> MatrixFormat:
    published = _published(stored, first_col)
    if asked is None:
        return published
    if asked == "bf16":
        return BF16
    if not is_quantized:
        if asked not in GROUPED:
            return MatrixFormat(asked)
        group = _group(_OWN_GROUP.get(asked, GROUPS[0]), first_col)
        return MatrixFormat(asked, group) if group else BF16
    if published.format not in (asked, "bf16"):
        raise OperatorError(
            f"the checkpoint is quantised already, to {published.format}, and cannot be quantised to {asked}: "
            "leave out --quantization, or take the model's bf16 checkpoint"
        )
    return published


def _absorbed(made: MatrixFormat, stored: Stored | None) -> MatrixFormat:
    """For a matrix that is absorbed, where others like it are kept as `made`. Codes of a checkpoint are kept."""
    return made if made == BF16 or stored is not None else _ABSORBED


def _turned(made: MatrixFormat, stored: Stored | None, head_rows: int) -> MatrixFormat:
    """The same for the transpose of a part of the `head_rows` rows of each head: groups lie along the other axis then.
    Codes are kept where a scale is of a block that has at least a group's rows; others are rounded again."""
    if made.format == "fp8" and stored and stored.block_rows % GROUPS[0] == 0 and head_rows % stored.block_rows == 0:
        return MatrixFormat("fp8", GROUPS[0])
    return made if made == BF16 else _ABSORBED


def _published(stored: Sequence[Stored | None], first_col: int) -> MatrixFormat:
    parts = [each for each in stored if each is not None]
    natives = {each.native for each in parts}
    if not parts or len(parts) < len(stored) or (len(natives) > 1 and natives != {"int4", "int8_group"}):
        return BF16
    if natives == {"int8"}:
        return MatrixFormat("int8")
    group = GROUPS[0]
    for part in parts:
        group = _group(part.group or group, first_col, group)
    if group == 0:
        return BF16
    if natives == {"fp8"}:
        return MatrixFormat("fp8", group)
    if natives == {"mxfp4"}:
        return MatrixFormat("mxfp4", group)
    return MatrixFormat("int4" if natives == {"int4"} else "int8_group", group, _offsets(parts, len(natives) > 1))


def _group(group: int, first_col: int, most: int = GROUPS[0]) -> int:
    """The largest native group, up to `most`, that divides the groups of a tensor and begins at `first_col`; else 0."""
    fitting = (each for each in GROUPS if each <= most and group % each == 0 and first_col % each == 0)
    return next(fitting, 0)


def _offsets(parts: Sequence[Stored], widened: bool) -> Offsets:
    if any(part.has_minima for part in parts):
        return "minima"
    return "zeros" if widened or any(part.has_zeros for part in parts) else "none"
