"""Lines of memory that a thread's share of a product copies, writes past the caches, writes otherwise and waits for.

The amx_emulated set records what a share does with lines; closed forms say what it should do. A line is waited for
(a demand miss) if a share loads, copies or writes it before it is fetched. Lines written past the caches never are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import SimpleNamespace

import kernel_ops
import kernel_reference as reference
import numaserve_kernel_tests as ops
import numpy as np
import pytest
from numaserve.kernels import PackedMatrix, available_isas
from numpy.typing import NDArray

pytestmark = pytest.mark.skipif("amx_emulated" not in available_isas(), reason="counts lines over emulated tiles")

FETCHED, ACTIVATIONS, WEIGHTS, COPIED, STREAMED = range(5)  # as LineUse of line_uses.h
LINE, PAIR_LINES = 64, 32  # bytes of a line; lines of a k tile of two panels
XEON = (48 << 10, 2 << 20)
SMALL = (8 << 10, 16 << 10)  # blocks of 4 k tiles, slabs of 8, groups of a pair of panels; results stream from 8 KiB on

Share = tuple[int, int, int, int]  # rows and panels, from the first to the last + 1


@dataclass(frozen=True)
class Counts:
    """Lines that a share copies, streams, writes otherwise, and waits for."""

    copied: int
    streamed: int
    written: int
    missed: int


@dataclass(frozen=True)
class Product:
    """A product [m, n] of rows of `k_tiles` k tiles."""

    m: int
    n: int
    k_tiles: int
    tiled: bool
    result: str  # fp32, bf16, or silu: bf16 of half as many columns
    caches: tuple[int, ...]

    @cached_property
    def sizes(self) -> SimpleNamespace:
        """The blocking for the caches."""
        sizes = ops.blocking("amx_emulated", *self.caches[:2])
        return SimpleNamespace(**sizes | ({"least_copied_pairs": self.caches[2]} if self.caches[2:] else {}))

    def counts(self, share: Share) -> Counts:
        """Return the closed forms of a share within one block of rows."""
        first, last, panel, end = share
        rows, pairs = last - first, (end - panel) // 2
        blocks = self.tiled or (rows > max(32, self.sizes.few_rows) and pairs >= self.sizes.least_copied_pairs)
        slabs = self.slabs(rows)
        groups = -(-2 * pairs // self.sizes.group_panels) if len(slabs) > 1 else 1
        copied = groups * rows * self.k_tiles if blocks and not self.tiled else 0
        streamed = rows * self.streamed_lines(panel, end)
        written = rows * self.result_lines(panel, end) - streamed
        own_rows = -(-rows // 16) * 16 if self.tiled else rows
        if blocks:  # all but the first block of a slab of the first pair
            weights = sum(tiles // self.copied_blocks(tiles) for tiles in slabs) * PAIR_LINES
        elif rows <= 32:
            weights = 48  # a stream that is fetched 3 KiB ahead
        else:
            weights = self.missed_in_place(slabs) * PAIR_LINES
        return Counts(copied, streamed, written, own_rows * self.k_tiles + weights + written)

    def slabs(self, rows: int) -> list[int]:
        """Return the k tiles of each slab."""
        groups = -(-rows // 32)
        most = min((1 << 20) // (groups * 32 * LINE), self.sizes.slab_tiles * 8 // groups)
        count = 1 if rows <= 32 else -(-self.k_tiles // most)
        bounds = [self.k_tiles * index // count for index in range(count + 1)]
        return [end - begin for begin, end in pairwise(bounds)]

    def copied_blocks(self, tiles: int) -> int:
        """Return the number of blocks of a slab of copied activations."""
        wanted = self.sizes.copied_tiles
        return max((tiles + wanted // 2) // wanted, -(-tiles // (wanted * 5 // 4)))

    def missed_in_place(self, slabs: list[int]) -> int:
        """Return the k tiles of weights that no earlier block fetches: of the first pair, the first 16 of a slab."""
        return sum(min(16, tiles) for tiles in slabs)

    def result_lines(self, panel: int, end: int) -> int:
        """Return the lines of a row's results. A pair of gated panels may have half of one."""
        panels_of_line = {"fp32": 1, "bf16": 2, "silu": 4}[self.result]
        return -(-end // panels_of_line) - panel // panels_of_line

    def streamed_lines(self, panel: int, end: int) -> int:
        """Return the lines of a row's results that are written past the caches."""
        columns = self.n // 2 if self.result == "silu" else self.n
        if (4 if self.result == "fp32" else 2) * self.m * columns <= self.sizes.streamed_bytes:
            return 0
        return max(0, end // 4 - -(-panel // 4)) if self.result == "silu" else self.result_lines(panel, end)


def found_counts(product: Product, share: Share, multiply: Callable[[], None], out: NDArray, empty: NDArray) -> Counts:
    """Return what the emulated set does with lines while it computes a share."""
    out[:] = empty
    lines, uses = (
        np.frombuffer(each, dtype)
        for each, dtype in zip(ops.traced(1 << 22, multiply), (np.uint64, np.int8), strict=True)
    )
    copied, streamed = int((uses == COPIED).sum()), int((uses == STREAMED).sum())
    touched = int((out.view(np.uint8) != empty.view(np.uint8)).reshape(len(out), -1, LINE).any(axis=2).sum())
    if copied:  # tiles of activations are loaded from the thread's own memory
        lines, uses = lines[uses != ACTIVATIONS], uses[uses != ACTIVATIONS]
    _, first = np.unique(lines, return_index=True)
    missed = int(np.isin(uses[first], (ACTIVATIONS, WEIGHTS, COPIED)).sum())
    return Counts(copied, streamed, touched - streamed, missed + touched - streamed)


def shares(m: int, n: int, threads: int, every: int = 1) -> Iterator[Share]:
    """Yield the rectangles of some threads' shares."""
    for thread in range(0, threads, every):
        yield from ops.shares(m, n // 16, thread, threads)


def check_counts(weight: PackedMatrix, a: NDArray, product: Product, of_shares: Iterator[Share]) -> list[Counts]:
    """Compare a product's shares with their closed forms; return the counts."""
    rows = np.zeros((kernel_ops.padded(product.m), a.shape[1]), np.uint16)  # finite in either order
    rows[: product.m] = a[: product.m]
    activation = "silu" if product.result == "silu" else "none"
    columns = product.n // 2 if activation == "silu" else product.n
    empty = kernel_ops.filled((product.m, columns), np.nan if product.result == "fp32" else kernel_ops.GARBAGE)
    out = kernel_ops.filled(empty.shape, np.nan if product.result == "fp32" else kernel_ops.GARBAGE)
    outputs = (out, None) if product.result == "fp32" else (None, out)
    found = []
    for share in of_shares:

        def multiply(share: Share = share) -> None:
            options = (0.0, False, False, False, 1, *product.caches)
            more = {"tiled_rows": product.tiled, "only": share}
            ops.gemm("amx_emulated", rows, product.m, weight, None, activation, *outputs, *options, **more)

        found.append(found_counts(product, share, multiply, out, empty))
        assert found[-1] == product.counts(share), share
    return found


# Rows, threads, caches: shares of whole and of parts of row blocks, with copies and in place.
CASES = [
    (33, 1, SMALL),
    (33, 43, XEON),
    (100, 1, SMALL),
    (100, 7, XEON),
    (293, 3, XEON),
    (293, 7, (*SMALL, 0)),
    (577, 7, SMALL),
    (577, 43, XEON),
]


@pytest.mark.parametrize("weights", ["bf16", "int8"])
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("result", ["fp32", "bf16", "silu"])
def test_a_share_uses_lines_as_its_closed_forms_say(
    rng: np.random.Generator, weights: str, tiled: bool, result: str
) -> None:
    n, k = 640, 352 if weights == "bf16" else 1152  # 20 pairs of panels; 11 or 18 k tiles
    a = reference.to_bf16(rng.standard_normal((577, k)))
    weight = kernel_ops.packed(reference.to_bf16(rng.standard_normal((n, k))), weights=weights)
    for m, threads, caches in CASES:
        product = Product(m, n, k // (32 if weights == "bf16" else 64), tiled, result, caches)
        check_counts(weight, a, product, shares(m, n, threads, every=1 + threads // 4))


# o of Llama-1B: no share of 43 threads has enough pairs of panels to copy activations.
def test_narrow_shares_copy_nothing(rng: np.random.Generator) -> None:
    weight = kernel_ops.packed(reference.to_bf16(rng.standard_normal((2048, 2048))), weights="int8")
    a = reference.to_bf16(rng.standard_normal((512, 2048)))
    product = Product(512, 2048, 32, tiled=False, result="fp32", caches=XEON)
    found = check_counts(weight, a, product, shares(512, 2048, 43, every=14))
    assert {each.copied for each in found} == {0}
