"""AMX instructions, on a processor that has them or on what emulates one; see tests/kernels/amx."""

import subprocess
import sys
from collections.abc import Sequence

import kernel_ops
import kernel_reference as reference
import numaserve_kernel_tests as ops
import numpy as np
import pytest
from numaserve.kernels import available_isas

pytestmark = [
    pytest.mark.amx,
    pytest.mark.skipif("amx" not in available_isas(), reason="needs AMX, or `make test-amx`"),
]

SHAPES = [(16, 16, 16), (5, 7, 9), (1, 16, 3), (16, 1, 16), (1, 1, 1)]  # rows, columns, depth in words


def bits_of_bf16(rng: np.random.Generator, shape: Sequence[int], exponents: tuple[int, int]) -> np.ndarray:
    values = np.ldexp(rng.uniform(-1, 1, shape), rng.integers(*exponents, shape)).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("exponents", [(-3, 3), (-64, -58), (-127, -118)], ids=["ordinary", "tiny", "subnormal"])
@pytest.mark.parametrize(("rows", "columns", "depth"), SHAPES)
def test_a_product_of_bf16_has_the_bits_of_the_manual(
    rng: np.random.Generator, rows: int, columns: int, depth: int, exponents: tuple[int, int]
) -> None:
    a, b = bits_of_bf16(rng, (rows, 2 * depth), exponents), bits_of_bf16(rng, (depth, 2 * columns), (-66, 3))
    before = np.ldexp(rng.uniform(-1, 1, (rows, columns)), 2 * min(exponents[0], -1)).astype(np.float32)
    result, expected = before.copy(), before.copy()
    ops.amx_multiply("bf16", a.view(np.uint8), b.view(np.uint8), result.view(np.uint8))
    ops.amx_bf16_by_manual(a, b, expected)
    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", ["ssd", "sud", "usd", "uud"])
@pytest.mark.parametrize(("rows", "columns", "depth"), SHAPES)
def test_a_product_of_bytes_is_exact(rng: np.random.Generator, rows: int, columns: int, depth: int, kind: str) -> None:
    types = [np.int8 if sign == "s" else np.uint8 for sign in kind[:2]]
    a, b = (rng.integers(0, 256, shape, np.uint8) for shape in ((rows, 4 * depth), (depth, 4 * columns)))
    before = rng.integers(-(2**31), 2**31, (rows, columns)).astype(np.int32)
    result = before.copy()
    ops.amx_multiply(kind, a, b, result.view(np.uint8))
    lines = b.view(types[1]).reshape(depth, columns, 4).swapaxes(1, 2).reshape(4 * depth, columns)
    expected = before + a.view(types[0]).astype(np.int64) @ lines.astype(np.int64)
    np.testing.assert_array_equal(result, expected.astype(np.int32))  # which wraps, as the sums do


def test_a_configuration_is_stored_as_it_was_loaded() -> None:
    assert ops.amx_keeps_its_configuration()


@pytest.mark.parametrize("fault", ops.amx_faults())
def test_what_the_processor_refuses_ends_the_process(fault: str) -> None:
    code = f"import numaserve_kernel_tests as ops; ops.amx_run_into_fault({fault!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode < 0, run.stderr


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4", "fp8"])
@pytest.mark.parametrize("rows", [1, 17, 40])
def test_tiles_in_software_have_the_bits_of_the_instructions(rng: np.random.Generator, weights: str, rows: int) -> None:
    a, b = (reference.to_bf16(rng.standard_normal((n, 200)) * 1e-3) for n in (rows, 50))
    matrix = kernel_ops.packed(b, weights=weights, group=0 if weights in ("bf16", "int8") else 32)
    results = [kernel_ops.multiply(isa, a, matrix) for isa in ("amx", "amx_emulated")]
    np.testing.assert_array_equal(*(result.view(np.uint32) for result in results))
