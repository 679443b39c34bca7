"""The layouts that quantized checkpoints are published in: what config.json says of each, and what writes it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.published_writers import (
    Values,
    Written,
    awq,
    fp8,
    fp8_blocks_of_four_dimensions,
    gptq,
    integers,
    mxfp4,
    mxfp8,
    nvfp4,
    packed,
    with_input_scale,
)


@dataclass(frozen=True)
class Published:
    """A layout: what config.json says of it, and how a matrix [out features, in features] is written."""

    config: dict[str, Any]
    write: Callable[[Values], Written]
    native: str
    exact: bool = True  # whether the codes are kept as they are


def _gptq_config(bits: int, group: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, **more}


def _scheme(format: str, activations: dict[str, Any] | None = None, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


_INT8_TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
_FP8_TOKENS = _INT8_TOKENS | {"type": "float"}
_FIXED = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group"}
_MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "symmetric": True, "group_size": 32}
_NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "symmetric": True, "group_size": 16}
_MXFP8 = {"num_bits": 8, "type": "float", "strategy": "group", "symmetric": True, "group_size": 32}
_NVFP4_INPUTS = _NVFP4 | {"dynamic": "local"}
_MODELOPT = {"quant_method": "modelopt", "ignore": ["lm_head"], "producer": {"name": "modelopt", "version": "0.39"}}
_AUTO_ROUND = {"quant_method": "auto-round", "bits": 4, "data_type": "int"}

LAYOUTS: dict[str, Published] = {
    "gptq": Published(
        _gptq_config(4, 128, sym=True, desc_act=False, checkpoint_format="gptq"),
        lambda w: gptq(w, bits=4, group=128, symmetric=True, minus_one=True, act_order=False),
        "int4",
    ),
    "gptq asymmetric": Published(
        _gptq_config(4, 64, sym=False),
        lambda w: gptq(w, bits=4, group=64, symmetric=False, minus_one=True, act_order=False),
        "int4",
    ),
    "gptq v2 rows": Published(
        _gptq_config(4, -1, sym=False, desc_act=True, checkpoint_format="gptq_v2"),
        lambda w: gptq(w, bits=4, group=-1, symmetric=False, minus_one=False, act_order=False),
        "int4",
    ),
    "gptq 8 bits": Published(
        _gptq_config(8, 32, sym=False),
        lambda w: gptq(w, bits=8, group=32, symmetric=False, minus_one=True, act_order=False),
        "int8_group",
    ),
    "gptq 3 bits": Published(
        _gptq_config(3, 64, sym=False),
        lambda w: gptq(w, bits=3, group=64, symmetric=False, minus_one=True, act_order=False),
        "int4",
    ),
    "gptq 2 bits": Published(
        _gptq_config(2, 32, sym=True),
        lambda w: gptq(w, bits=2, group=32, symmetric=True, minus_one=True, act_order=False),
        "int4",
    ),
    "gptq act-order": Published(
        _gptq_config(4, 32, sym=False, desc_act=True),
        lambda w: gptq(w, bits=4, group=32, symmetric=False, minus_one=True, act_order=True),
        "int8_group",
        exact=False,
    ),
    "awq": Published(
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
        lambda w: awq(w, group=128),
        "int4",
    ),
    "auto-round gptq": Published(
        _AUTO_ROUND | {"group_size": 32, "sym": True, "packing_format": "auto_round:auto_gptq"},
        lambda w: gptq(w, bits=4, group=32, symmetric=True, minus_one=True, act_order=False),
        "int4",
    ),
    "auto-round": Published(
        _AUTO_ROUND | {"group_size": 64, "sym": False, "packing_format": "auto_round"},
        lambda w: gptq(w, bits=4, group=64, symmetric=False, minus_one=False, act_order=False),
        "int4",
    ),
    "auto-round 3 bits": Published(
        _AUTO_ROUND | {"bits": 3, "group_size": 128, "sym": True, "packing_format": "auto_round"},
        lambda w: gptq(w, bits=3, group=128, symmetric=True, minus_one=False, act_order=False),
        "int4",
    ),
    "auto-round 2 bits": Published(
        _AUTO_ROUND | {"bits": 2, "group_size": 32, "sym": False, "packing_format": "auto_round:auto_gptq"},
        lambda w: gptq(w, bits=2, group=32, symmetric=False, minus_one=True, act_order=False),
        "int4",
    ),
    "auto-round awq": Published(
        _AUTO_ROUND | {"group_size": 128, "sym": True, "packing_format": "auto_round:auto_awq"},
        lambda w: awq(w, group=128, symmetric=True),
        "int4",
    ),
    "w4a16": Published(
        _scheme("pack-quantized", **_INT4, group_size=128, symmetric=True),
        lambda w: packed(w, bits=4, group=128, symmetric=True),
        "int4",
    ),
    "w4a16 groups of 32": Published(
        _scheme("pack-quantized", **_INT4, group_size=32, symmetric=True),
        lambda w: packed(w, bits=4, group=32, symmetric=True),
        "int4",
    ),
    "w4a16 asymmetric": Published(
        _scheme("pack-quantized", **_INT4, group_size=32, symmetric=False),
        lambda w: packed(w, bits=4, group=32, symmetric=False),
        "int4",
    ),
    "w4a16 act-order": Published(
        _scheme("pack-quantized", **_INT4, group_size=64, symmetric=True, actorder="group"),
        lambda w: packed(w, bits=4, group=64, symmetric=True, act_order=True),
        "int8_group",
        exact=False,
    ),
    "w8a16": Published(
        _scheme("pack-quantized", num_bits=8, type="int", strategy="channel", symmetric=True),
        lambda w: packed(w, bits=8, group=-1, symmetric=True),
        "int8_group",
    ),
    "w8a8": Published(
        _scheme("int-quantized", _INT8_TOKENS, num_bits=8, type="int", strategy="channel", symmetric=True),
        lambda w: integers(w, group=-1, symmetric=True),
        "int8",
    ),
    "w8a8 asymmetric": Published(
        _scheme("int-quantized", _INT8_TOKENS, num_bits=8, type="int", strategy="channel", symmetric=False),
        lambda w: integers(w, group=-1, symmetric=False),
        "int8_group",
    ),
    "fp8 blocks": Published(
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        lambda w: fp8(w, block=(128, 128), scale="weight_scale_inv"),
        "fp8",
    ),
    "fp8 rows": Published(
        _scheme("float-quantized", _FP8_TOKENS, num_bits=8, type="float", strategy="channel", symmetric=True),
        lambda w: fp8(w, block=None),
        "fp8",
    ),
    "fp8 tensor": Published(
        _scheme("float-quantized", _FP8_TOKENS, num_bits=8, type="float", strategy="tensor", symmetric=True),
        lambda w: fp8(w, block=None, per_row=False),
        "fp8",
    ),
    "fp8 fixed activations": Published(
        {"quant_method": "fp8", "activation_scheme": "static"},
        lambda w: with_input_scale(fp8(w, block=None, per_row=False)),
        "fp8",
    ),
    "fp8 fixed activations and cache": Published(
        _scheme("float-quantized", _FIXED, num_bits=8, type="float", strategy="tensor", symmetric=True)
        | {"kv_cache_scheme": _FIXED},
        lambda w: with_input_scale(fp8(w, block=None, per_row=False)),
        "fp8",
    ),
    "w8a8 fixed activations": Published(
        _scheme("int-quantized", _FIXED | {"type": "int"}, num_bits=8, type="int", strategy="channel", symmetric=True),
        lambda w: with_input_scale(integers(w, group=-1, symmetric=True)),
        "int8",
    ),
    "w4a8": Published(
        _scheme("int-quantized", _INT8_TOKENS, num_bits=4, type="int", strategy="channel", symmetric=True),
        lambda w: integers(w, group=-1, symmetric=True, bits=4),
        "int8",
    ),
    "w4a8 groups": Published(
        _scheme("int-quantized", _INT8_TOKENS, **_INT4, group_size=64, symmetric=False),
        lambda w: integers(w, group=64, symmetric=False, bits=4),
        "int8_group",
    ),
    "gptq groups of 16": Published(
        _gptq_config(4, 16, sym=True),
        lambda w: gptq(w, bits=4, group=16, symmetric=True, minus_one=True, act_order=False),
        "int8_group",
        exact=False,
    ),
    "gptq 3 bits in groups of 16": Published(
        _gptq_config(3, 16, sym=True),
        lambda w: gptq(w, bits=3, group=16, symmetric=True, minus_one=True, act_order=False),
        "int8_group",
        exact=False,
    ),
    "awq groups of 16": Published(
        {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"},
        lambda w: awq(w, group=16),
        "int8_group",
        exact=False,
    ),
    "w4a16 groups of 16": Published(
        _scheme("pack-quantized", **_INT4, group_size=16, symmetric=False),
        lambda w: packed(w, bits=4, group=16, symmetric=False),
        "int8_group",
        exact=False,
    ),
    "w8a16 groups of 16": Published(
        _scheme("pack-quantized", **_INT4 | {"num_bits": 8}, group_size=16, symmetric=True),
        lambda w: packed(w, bits=8, group=16, symmetric=True),
        "int8_group",
        exact=False,
    ),
    "w8a8 groups of 16": Published(
        _scheme("int-quantized", _INT8_TOKENS, **_INT4 | {"num_bits": 8}, group_size=16, symmetric=True),
        lambda w: integers(w, group=16, symmetric=True),
        "int8_group",
        exact=False,
    ),
    "mxfp4": Published(
        _scheme("mxfp4-pack-quantized", **_MXFP4, scale_dtype="torch.uint8"),
        lambda w: mxfp4(w, packed=True),
        "mxfp4",
    ),
    "modelopt fp8": Published(
        _MODELOPT | {"quant_algo": "FP8", "kv_cache_scheme": _FIXED},
        lambda w: with_input_scale(fp8(w, block=None, per_row=False)),
        "fp8",
    ),
    "modelopt fp8 rows": Published(
        _MODELOPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, lambda w: fp8(w, block=None), "fp8"
    ),
    "modelopt fp8 blocks": Published(_MODELOPT | {"quant_algo": "fp8_pb_wo"}, fp8_blocks_of_four_dimensions, "fp8"),
    "mxfp8": Published(
        _scheme("mxfp8-quantized", _MXFP8 | {"dynamic": True}, **_MXFP8, scale_dtype="torch.uint8"), mxfp8, "fp8"
    ),
    "modelopt mxfp8": Published(_MODELOPT | {"quant_algo": "MXFP8"}, mxfp8, "fp8"),
    "nvfp4": Published(_scheme("nvfp4-pack-quantized", _NVFP4_INPUTS, **_NVFP4), nvfp4, "nvfp4"),
    "modelopt nvfp4": Published(
        _MODELOPT | {"quant_algo": "NVFP4", "group_size": 16},
        lambda w: with_input_scale(nvfp4(w, modelopt=True)),
        "nvfp4",
    ),
}
