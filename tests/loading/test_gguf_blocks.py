"""GGUF's blocks, decoded, are what the gguf package makes of them."""

from collections.abc import Callable

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.layers.stored import GGUF_BLOCKS as STORED
from numaserve.workers.weights.quantized.coded import CodedTensor
from numaserve.workers.weights.quantized.gguf_blocks import decode
from numaserve.workers.weights.source import RawTensor

from tests.support import k_quants
from tests.support.checkpoints import GGUF_BLOCKS

ROWS, COLUMNS = 6, 512
# Where blocks have numbers in fp16: most at their begin.
_HALVES: dict[str, tuple[int, ...]] = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}
_HALVES |= dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))
Bytes = k_quants.Bytes


def written(kind: str) -> Bytes:
    values = np.random.default_rng(1).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    values[:, 100:140] *= 20
    values[3] = 0
    return k_quants.quantize(values, GGMLQuantizationType[kind])


def anything(kind: str) -> Bytes:
    """Blocks of random bits, but for scales that are no numbers."""
    values, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = np.random.default_rng(2).integers(0, 256, (ROWS * COLUMNS // values, size), dtype=np.uint8)
    halves = _HALVES.get(kind, (0,))
    if kind == "MXFP4":
        blocks[:, 0] %= 250  # six times the larger powers of two is too much
    for at in halves:
        blocks[:, at : at + 2] = np.float16(0.37).reshape(1).view(np.uint8)
    return blocks.reshape(ROWS, -1)


def decoded(kind: str, data: Bytes, rows: range) -> CodedTensor:
    return decode(RawTensor("w", data.reshape(-1), kind.lower(), (ROWS, COLUMNS)), rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [written, anything])
@pytest.mark.parametrize("kind", GGUF_BLOCKS)
def test_blocks_are_decoded_as_the_gguf_package_does(kind: str, make: Callable[[str], Bytes]) -> None:
    data = make(kind)
    expected = gguf.quants.dequantize(data, GGMLQuantizationType[kind])
    for rows in (range(ROWS), range(2, 5)):
        found = decoded(kind, data, rows)
        assert found.format == STORED[kind.lower()].native
        assert found.group == (16 if kind in {"Q2_K", "Q6_K", "IQ2_XS", "IQ2_S"} else STORED[kind.lower()].group)
        wanted = expected[rows.start : rows.stop]
        np.testing.assert_array_equal(found.dequantized(), wanted)
        np.testing.assert_array_equal(found.widened().dequantized(), wanted)


@pytest.mark.parametrize("kind", GGUF_BLOCKS)
def test_the_tests_own_rounding_is_close(kind: str) -> None:
    values = np.random.default_rng(3).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    found = gguf.quants.dequantize(k_quants.quantize(values, GGMLQuantizationType[kind]), GGMLQuantizationType[kind])
    few = {"Q2_K": 0, "Q3_K": 1, "IQ3_XXS": 1, "IQ3_S": 1} | dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S"), 0)
    bits = few.get(kind, 3 if kind[1] in "568" else 2)
    assert np.abs(found - values).mean() < 0.4 / 2**bits


@pytest.mark.parametrize("kind", GGUF_BLOCKS)
def test_scales_that_are_not_finite_are_refused(kind: str) -> None:
    data = written(kind)
    at = next(iter(_HALVES.get(kind, ())), 0)
    data[4, at : at + 2] = 255 if kind == "MXFP4" else np.float16(np.inf).reshape(1).view(np.uint8)
    decoded(kind, data, range(4))
    with pytest.raises(OperatorError, match="tensor w holds scales that are not finite"):
        decoded(kind, data, range(ROWS))


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    tensor = RawTensor("w", np.zeros(144, np.uint8), "q4_k", (2, 128))
    with pytest.raises(OperatorError, match="rows of 128 columns, not a multiple of 256; fetch"):
        decode(tensor, range(2))
