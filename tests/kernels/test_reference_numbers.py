"""The reference rounds as the kernels do, to the bit."""

import kernel_reference
import kv_reference
import numpy as np
import pytest
import torch
from numaserve.workers.interface.settings import KvCacheDtype
from numaserve.workers.program.reference.numbers import DECLARED, Numbers

DTYPES: list[KvCacheDtype] = ["bf16", "int8", "fp8_e4m3"]


@pytest.fixture
def x(rng: np.random.Generator) -> kernel_reference.F32:
    """Rows of magnitudes from 2^-40 to 2^40, one of zeros."""
    rows = rng.standard_normal((60, 96)) * 2.0 ** rng.integers(-40, 40, (60, 1))
    rows[7] = 0.0
    return kernel_reference.from_bf16(kernel_reference.to_bf16(rows))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cache_keeps_what_kernels_keep(dtype: KvCacheDtype, x: kernel_reference.F32) -> None:
    found = DECLARED.kept(torch.from_numpy(x), dtype).numpy()
    np.testing.assert_array_equal(found, kv_reference.kept(dtype, x).astype(np.float32))


@pytest.mark.parametrize("group", [0, 32, 64])
def test_activations_in_int8_are_those_of_kernels(group: int, x: kernel_reference.F32) -> None:
    columns = -(-x.shape[1] // group) * group if group else x.shape[1]
    padded = np.pad(x, [(0, 0), (0, columns - x.shape[1])]).reshape(-1, group or columns)
    codes, scales = kernel_reference.quantized(padded)
    expected = (codes.astype(np.float64) * scales[:, None]).reshape(len(x), columns)[:, : x.shape[1]]
    found = Numbers(torch.float64).int8(torch.from_numpy(x).double(), group).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_exact_numbers_are_not_rounded(x: kernel_reference.F32) -> None:
    exact, values = Numbers(torch.float64, rounded=False), torch.from_numpy(x).double() / 3
    for rounded in (exact.bf16(values), exact.int8(values, 32), *(exact.kept(values, dtype) for dtype in DTYPES)):
        assert rounded is values
