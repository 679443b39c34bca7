"""The activations of weights that the server quantizes itself, where the operator leaves the choice to the server.

int8 activations lose accuracy, so they must gain speed on every kind of step. The shipped rows of `numaserve bench
kernels` decide, not the machine at hand: all hosts with an instruction set compute the same bits. A processor counts
where the rows have products of the same sizes by both activations. The quotient of both times, as a geometric mean over
the sizes, must reach `_LEAST_GAIN` for one row, for a batch of a few rows, and for prompts, on every processor that
counts. A separate operation quantizes the activations, and these times leave it out: the least gain is far more than
it takes. Without such rows activations stay bf16. Experts follow plain products.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any, get_args

from msgspec import structs
from numaserve.configs import efficiencies
from numaserve.workers.interface.settings import ModelSettings, Quantization, WeightFormat
from numaserve.workers.layers.formats import own_format
from numaserve.workers.layers.partition import Partition
from numaserve.workers.planning.roofline.measured_rows import read_rows
from numaserve.workers.program.handles import INTEGER_GROUPS, product_name

_LEAST_GAIN = 1.1
_STEPS = (range(1, 2), range(2, 65), range(65, 1 << 20))  # rows of one sequence's decoding, of a batch's, of prompts
_OWN: tuple[WeightFormat, ...] = tuple(each for each in get_args(Quantization) if each in INTEGER_GROUPS)

_Row = Mapping[str, Any]


def with_activations(settings: ModelSettings, isa: str | None) -> ModelSettings:
    """Return the settings with the formats that `auto` multiplies by int8 activations.

    `isa`: the instruction set of the kernels; None for the reference backend.
    """
    if settings.formats.activations != "auto":
        return settings
    chosen = structs.replace(settings.formats, int8_activations=_faster_by_int8(isa))
    return structs.replace(settings, formats=chosen)


def activation_notes(partition: Partition) -> tuple[str, ...]:
    """Return a sentence for the operator where int8 activations would be faster, but the weights were published
    quantized: those who published them measured their accuracy with exact weights."""
    faster = partition.settings.formats.int8_activations
    kept = [each for each in partition.multiplied_by().get("bf16", []) if each in faster]
    return tuple(
        f"the published {each} weights are multiplied by bf16 activations: --activation-dtype int8 is faster on this "
        "instruction set, and rounds activations to 8 bits"
        for each in kept
    )


def faster_by_int8(rows: Sequence[_Row]) -> tuple[WeightFormat, ...]:
    """Return the formats whose products, as the server quantizes weights, are faster by int8 activations."""
    return tuple(each for each in _OWN if _is_faster(rows, each))


@functools.cache
def _faster_by_int8(isa: str | None) -> tuple[WeightFormat, ...]:
    path = efficiencies().get(isa or "")
    return () if path is None else faster_by_int8(read_rows(path))


def _is_faster(rows: Sequence[_Row], format: WeightFormat) -> bool:
    gains: dict[str, dict[int, list[float]]] = {}
    for processor, count, gain in _gains(rows, format):
        gains.setdefault(processor, {}).setdefault(count, []).append(gain)
    return bool(gains) and all(_pays(of_one) for of_one in gains.values())


def _gains(rows: Sequence[_Row], format: WeightFormat) -> Iterator[tuple[str, int, float]]:
    """Yield the processor, the number of rows and the gain of each size that was measured by both activations."""
    group = own_format(format).group
    by_bf16, by_int8 = (
        {
            (row["processor"], row["M"], row["N"], row["K"], row["model"], row["product"]): row["best_us"]
            for row in rows
            if row["table"] == f"gemm, {product_name(format, group, activations)}"
        }
        for activations in ("bf16", "int8")
    )
    for size, seconds in by_bf16.items():
        if size in by_int8:
            yield size[0], size[1], seconds / by_int8[size]


def _pays(gains: Mapping[int, Sequence[float]]) -> bool:
    """Return whether int8 activations are faster for each kind of step on a processor."""
    for step in _STEPS:
        found = [gain for count, each in gains.items() if count in step for gain in each]
        if not found or geometric_mean(found) < _LEAST_GAIN:
            return False
    return True
