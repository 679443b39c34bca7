"""The format of each matrix of a rank. Pure: the plan counts with it what the loader then packs.

A matrix takes the format it is published in where that can be divided at this rank's columns. One that is made of
several published ones takes the narrowest that holds all of them exactly: codes of 4 bits are codes of 8 bits too,
and bf16 takes anything else that does not agree.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import WeightFormat, WeightFormats
from numaserve.workers.layers.parameters import MatrixParameter, Parameter
from numaserve.workers.layers.stored import ROW, Stored, StoredMatrices
from numaserve.workers.program.handles import BF16, INTEGER_GROUPS, MatrixFormat, Offsets

StoredKinds = tuple[Stored | None, ...]

GROUPS = (128, 64, 32)
GROUPED: frozenset[WeightFormat] = frozenset({"int4", "int8_group", "fp8"})
_WHOLE_NUMBERS = frozenset({"int4", "iq4", "iq3", "iq2", "int8_group"})  # codes of all are codes of the last
_NVFP4_GROUP = 16  # columns of a scale; the groups of the packed matrix may begin at any of these
# Groups of weights that are quantized while loading: in 4 bits smaller ones lose less than their scales cost.
_OWN_GROUP: dict[WeightFormat, int] = {"int4": 32}
# The format of what latent attention absorbs, whatever the other matrices are quantized to: in 8 bits and groups it
# loses nothing that would show, in 4 bits, in e4m3 or with activations in int8 5 to 10 % more than all others lose
# together; and it is a few percent of a model.
_ABSORBED = MatrixFormat("int8_group", GROUPS[0])


def format_of(
    parameter: MatrixParameter, found: StoredKinds, formats: WeightFormats, first_col: int, *, is_quantized: bool
) -> MatrixFormat:
    """The format of a matrix whose groups begin at column `first_col` of its sources. The checkpoint has these as
    `found`.

    Those of all units of its `each` are of one format: they are one product of one operand. Raises `OperatorError`
    where a checkpoint that `is_quantized` is wanted in another format than it has.
    """
    made = _kept_in(parameter, found, formats, first_col, is_quantized=is_quantized)
    if formats.activations == "auto" or made.format not in INTEGER_GROUPS:
        return made
    return replace(made, activations=formats.activations)


def _kept_in(
    parameter: MatrixParameter, found: StoredKinds, formats: WeightFormats, first_col: int, *, is_quantized: bool
) -> MatrixFormat:
    """The format, and what it is multiplied by where the operator leaves that open."""
    if parameter.rule == "bf16":
        return BF16
    if parameter.rule == "head":
        return _choose(formats.lm_head, formats, found, first_col, is_quantized=found[0] is not None)
    if parameter.rule == "stored":
        return _published(found, first_col)
    made = _choose(formats.linear, formats, found, first_col, is_quantized=is_quantized)
    if parameter.rule != "absorbed":
        return made
    made = _absorbed(made, found[0])
    return made if parameter.layout != "turned" else _turned(made, found[0], parameter.parts[0].order.height)


def cut_of(found: Iterable[Stored | None], columns: int, parts: int) -> int:
    """Return the multiple at which `columns` are best divided into `parts`: the groups that the checkpoint has in the
    matrices along them, or pieces of them where whole ones would divide it unevenly."""
    groups = {each.group for each in found if each is not None} - {ROW}
    for cut in GROUPS:
        if groups and all(group % cut == 0 for group in groups) and columns >= 8 * parts * cut:
            return cut
    return GROUPS[-1]


def units_of(parameter: Parameter) -> range:
    """All units that a declaration stands for."""
    return range(1 if parameter.each is None else parameter.each.count)


def kinds_of(parameter: MatrixParameter, stored: StoredMatrices) -> StoredKinds:
    """The ways in which a checkpoint has the sources of a matrix, each once. Hundreds of experts are stored in one or
    two ways, which are objects that they share."""
    if not stored:
        return (None,)
    names = (source.named(unit) for unit in units_of(parameter) for source in dict.fromkeys(parameter.sources))
    return tuple({id(found): found for found in map(stored.get, names)}.values())


def own_format(asked: WeightFormat) -> MatrixFormat:
    """Return the format of weights that are quantized to `asked` while loading."""
    return MatrixFormat(asked, _OWN_GROUP.get(asked, GROUPS[0]) if asked in GROUPED else 0)


def _choose(
    asked: WeightFormat | None,
    formats: WeightFormats,
    stored: Sequence[Stored | None],
    first_col: int,
    *,
    is_quantized: bool,
) -> MatrixFormat:
    published = _published(stored, first_col)
    if asked is None:
        return published
    if asked == "bf16":
        return BF16
    if not is_quantized:
        own = own_format(asked)
        if asked not in GROUPED:
            return own
        group = _group(own.group, first_col)
        by_int8 = asked in formats.int8_activations
        return replace(own, group=group, activations="int8" if by_int8 else "bf16") if group else BF16
    if published.format not in (asked, "bf16"):
        raise OperatorError(
            f"the checkpoint is already quantized to {published.format} and cannot be quantized to {asked}: "
            f"leave out --quantization to keep {published.format}, or name a checkpoint in bf16 or {asked}. "
            "For an estimate, a config.json without its quantization_config is enough"
        )
    return published


def _absorbed(made: MatrixFormat, stored: Stored | None) -> MatrixFormat:
    """The format of a matrix that is absorbed, where others like it are kept as `made`. Codes of a checkpoint stay."""
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
    mixed = len(natives) > 1
    if not parts or len(parts) < len(stored) or (mixed and not natives <= _WHOLE_NUMBERS):
        return BF16
    if natives == {"int8"}:
        return MatrixFormat("int8")
    if natives == {"nvfp4"}:
        return MatrixFormat("nvfp4", GROUPS[0]) if first_col % _NVFP4_GROUP == 0 else BF16
    group = GROUPS[0]
    for part in parts:
        group = _group(part.group or group, first_col, group)
    if group == 0:
        return BF16
    native = "int8_group" if mixed else parts[0].native
    by_int8 = all(part.activations == "int8" for part in parts)
    offsets = _offsets(parts, mixed and "int4" in natives)
    return MatrixFormat(native, group, offsets, "int8" if by_int8 else "bf16")


def _group(group: int, first_col: int, most: int = GROUPS[0]) -> int:
    """The largest native group, up to `most`, that divides the groups of a tensor and begins at `first_col`; else 0."""
    fitting = (each for each in GROUPS if each <= most and group % each == 0 and first_col % each == 0)
    return next(fitting, 0)


def _offsets(parts: Sequence[Stored], widened: bool) -> Offsets:
    if any(part.has_minima for part in parts):
        return "minima"
    return "zeros" if widened or any(part.has_zeros for part in parts) else "none"
