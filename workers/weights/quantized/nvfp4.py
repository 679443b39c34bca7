"""NVFP4, as compressed-tensors (nvfp4-pack-quantized) and ModelOpt publish it.

Codes are e2m1, two in a byte, the low bits first: `weight_packed` uint8 [N, K / 2], `weight` of ModelOpt.
`weight_scale` e4m3 [N, K / 16] has a scale for 16 columns. One number in fp32 is of the whole tensor:
`weight_global_scale` divides the weights, `weight_scale_2` of ModelOpt multiplies them. `input_global_scale`, or
`input_scale`, a fixed scale of activations, is left out.
"""

from dataclasses import dataclass

import numpy as np
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.stored import Layout, Stored
from numaserve.workers.weights.quantized.coded import CodedTensor, e4m3_values
from numaserve.workers.weights.quantized.nibbles import codes_of_rows
from numaserve.workers.weights.quantized.parts import Part, Parts, Tensors, fixed_input_scale, floats, group_count

_GROUP = 16
_NAN = 0x7F
_SMALLEST_DIVISOR = 2.0**-126  # the inverse of a smaller one may be no number of fp32
_E4M3 = e4m3_values()


@dataclass(frozen=True)
class _Names:
    codes: str
    of_tensor: str
    inputs: str


_NAMES: dict[Layout, _Names] = {
    "nvfp4_packed": _Names("weight_packed", "weight_global_scale", "input_global_scale"),
    "modelopt_nvfp4": _Names("weight", "weight_scale_2", "input_scale"),
}


def parts(stored: Stored, rows: int, columns: int) -> Parts:
    """The tensors of a matrix."""
    names, groups = _NAMES[stored.layout], group_count(columns, _GROUP)
    return {
        names.codes: Part(("u8",), ((rows, groups * _GROUP // 2),)),
        "weight_scale": Part(("e4m3",), ((rows, groups),)),
        names.of_tensor: Part(("f32",), ((), (1,))),
        names.inputs: fixed_input_scale(),
    }


def decode(stored: Stored, tensors: Tensors, shape: tuple[int, int], rows: range) -> CodedTensor:
    """Return rows of a matrix of `shape`. Raises `OperatorError` where a scale is no number."""
    names, scales = _NAMES[stored.layout], tensors["weight_scale"]
    chosen = scales.data.reshape(shape[0], -1)[rows.start : rows.stop]
    if ((chosen & _NAN) == _NAN).any():
        raise OperatorError(f"tensor {scales.name} holds scales that are not finite; fetch the checkpoint again")
    packed = tensors[names.codes]
    codes = codes_of_rows(packed.data.view("<u4").reshape(shape[0], -1)[rows.start : rows.stop], stored.bits)
    factors = np.full((len(rows), 1), _factor(stored, tensors))
    return CodedTensor(packed.name, "nvfp4", codes[:, : shape[1]], _E4M3[chosen], _GROUP, factors=factors)


def _factor(stored: Stored, tensors: Tensors) -> np.float32:
    """Return the number that multiplies all weights."""
    tensor = tensors[_NAMES[stored.layout].of_tensor]
    value = floats(tensor).item()
    if stored.layout == "modelopt_nvfp4":
        return np.float32(value)
    if abs(value) < _SMALLEST_DIVISOR:
        raise OperatorError(f"tensor {tensor.name} divides weights by {value:g}; fetch the checkpoint again")
    return np.float32(1 / value)
