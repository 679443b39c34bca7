"""Products read no row beyond the last, as the last expert's may end with the arena, and need nothing of a thread."""

import ctypes
import mmap
from threading import Thread

import kernel_ops
import kernel_reference as reference
import numaserve_kernel_tests as ops
import numpy as np
import pytest
from numpy.typing import NDArray

# (weights, group, whether codes are widened to bf16)
FORMATS = [("bf16", 0, False), ("int4", 32, True), ("fp8", 128, True)]


def before_a_guard(rows: NDArray) -> NDArray:
    """A copy of `rows` that ends where a page begins that cannot be read: who reads on ends the process."""
    pages = -(-rows.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    data = np.frombuffer(memory, np.uint8)
    guard = ctypes.c_void_p(data.ctypes.data + pages * mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = data[pages * mmap.PAGESIZE - rows.nbytes : pages * mmap.PAGESIZE].view(rows.dtype).reshape(rows.shape)
    copy[:] = rows
    return copy


@pytest.mark.parametrize(("weights", "group", "widened"), FORMATS)
@pytest.mark.parametrize("m", [1, 5, 16, 17, 31, 33, 47, 48, 257])
def test_no_row_is_read_beyond_the_last(
    isa: str, rng: np.random.Generator, m: int, weights: str, group: int, widened: bool
) -> None:
    a, b = (reference.to_bf16(rng.standard_normal((n, 384))) for n in (m, 32))
    weight = kernel_ops.packed(b, weights=weights, group=group)
    out = before_a_guard(np.full((m, 32), np.nan, np.float32))
    rows = before_a_guard(a)
    ops.gemm(isa, rows, m, weight, None, "none", out, None, 0.0, widened, False, False, 1, *kernel_ops.CACHES)
    alone = [kernel_ops.multiply(isa, a[i : i + 1], weight, widened=widened)[0] for i in (0, m // 2, m - 1)]
    np.testing.assert_array_equal(out[[0, m // 2, m - 1]], alone)


def test_rows_are_multiplied_by_a_thread_that_has_not_multiplied_before(isa: str, rng: np.random.Generator) -> None:
    a, b = (reference.to_bf16(rng.standard_normal((n, 100))) for n in (3, 40))
    results: list[NDArray] = []
    thread = Thread(target=lambda: results.append(kernel_ops.gemm(isa, a, b)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(results[0], kernel_ops.gemm(isa, a, b))
