"""The layout of the quantized matrices of a checkpoint: read from config.json or the table of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from numaserve.workers.interface.settings import ActivationDtype

# GGUF's.
BlockLayout = Literal[
    "q8_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
    "iq3_xxs",
    "iq3_s",
    "iq2_xxs",
    "iq2_xs",
    "iq2_s",
    "mxfp4",
]
# "gptq" has zero points minus one, "gptq_v2" has them as they are.
Layout = Literal[
    "gptq",
    "gptq_v2",
    "awq",
    "packed",
    "int8",
    "fp8",
    "mxfp8",
    "gpt_oss",
    "mxfp4_packed",
    "nvfp4_packed",
    "modelopt_nvfp4",
    BlockLayout,
]
CodeFormat = Literal["int4", "int8_group", "int8", "fp8", "mxfp4", "iq4", "iq3", "iq2", "nvfp4"]

ROW = 0  # in place of a group: one scale for the whole row
REQUANTIZED_GROUP = 32
_ODD_NUMBERS = "iq3_s"  # GGUF's only kind with zeros: 7.5, as its codes stand for odd numbers


@dataclass(frozen=True)
class Stored:
    """One quantized matrix [out features, in features] of a checkpoint.

    `native` is the format that takes its codes, `group` how many columns have a scale in common then; `reordered`
    columns, and groups of 16, are rounded again into groups of 32.
    """

    layout: Layout
    native: CodeFormat
    group: int = ROW
    bits: int = 8
    symmetric: bool = True  # the zero points, if there are any, are in the middle
    reordered: bool = False  # GPTQ's act-order: the file says for each column which group it is of
    source_group: int = ROW  # the columns of a group in the file, where they are rounded again
    block_rows: int = 1  # rows that have a scale in common
    scale: str = "weight_scale"  # the name of the scales of compressed-tensors and fp8
    activations: ActivationDtype = "bf16"  # what weights in groups are multiplied by where the operator does not choose

    @property
    def has_minima(self) -> bool:
        """Whether weights are scale * code + minimum."""
        return not self.symmetric and self.layout in GGUF_BLOCKS and self.layout != _ODD_NUMBERS

    @property
    def has_zeros(self) -> bool:
        """Whether weights are scale * (code - zero), with zeros of their own."""
        return not self.symmetric and not self.source_group and not self.has_minima

    @property
    def file_group(self) -> int:
        """Columns of a group in the file."""
        return self.source_group or self.group

    @property
    def file_codes(self) -> CodeFormat:
        """The format of the codes as they are in the file; with an order, as they are put into it."""
        return "int4" if self.source_group and not self.reordered and self.bits <= 4 else self.native

    def regrouped(self) -> Stored:
        """Return the same matrix, rounded again where no packed matrix has such groups."""
        if self.group % REQUANTIZED_GROUP == 0:
            return self
        return replace(self, native="int8_group", group=REQUANTIZED_GROUP, source_group=self.group)


StoredMatrices = Mapping[str, Stored]  # by the name of the module without what stands before "layers."


# GGUF's block formats (ggml-common.h of llama.cpp): 32 columns to a scale, Q2_K, Q6_K, IQ2_XS and IQ2_S 16. So has
# Q3_K, but its scales are whole numbers times one of 256 columns, and their products with its codes are codes of 8
# bits.
# llama.cpp multiplies them by activations of 8 bits, with a scale for 32 columns, or 256 of the K kinds. Q8_0 would be
# 6 % further from fp32 by int8 than llama.cpp is: what else is rounded to bf16, the KV cache say, comes on top, and is
# not made up for by smaller groups (docs/accuracy.md).
_by_int8 = partial(Stored, activations="int8")
GGUF_BLOCKS: dict[str, Stored] = {
    "q8_0": Stored("q8_0", "int8_group", 32),
    "q4_0": _by_int8("q4_0", "int4", 32, bits=4),
    "q4_1": _by_int8("q4_1", "int4", 32, bits=4, symmetric=False),
    "q5_0": _by_int8("q5_0", "int8_group", 32, bits=5),
    "q5_1": _by_int8("q5_1", "int8_group", 32, bits=5, symmetric=False),
    "q2_k": _by_int8("q2_k", "int8_group", REQUANTIZED_GROUP, bits=2),
    "q3_k": _by_int8("q3_k", "int8_group", 256, bits=3),
    "q4_k": _by_int8("q4_k", "int4", 32, bits=4, symmetric=False),
    "q5_k": _by_int8("q5_k", "int8_group", 32, bits=5, symmetric=False),
    "q6_k": _by_int8("q6_k", "int8_group", REQUANTIZED_GROUP, bits=6),
    "iq4_nl": _by_int8("iq4_nl", "iq4", 32, bits=4),
    "iq4_xs": _by_int8("iq4_xs", "iq4", 32, bits=4),
    "iq3_xxs": _by_int8("iq3_xxs", "iq3", 32, bits=4),
    "iq3_s": _by_int8("iq3_s", "int4", 32, bits=4, symmetric=False),
    "iq2_xxs": _by_int8("iq2_xxs", "iq2", 32, bits=4),
    "iq2_xs": _by_int8("iq2_xs", "int8_group", REQUANTIZED_GROUP, bits=2),
    "iq2_s": _by_int8("iq2_s", "int8_group", REQUANTIZED_GROUP, bits=2),
    "mxfp4": Stored("mxfp4", "mxfp4", 32, bits=4),
}
