"""The native operations of multi-head latent attention on arrays of any shape; see kernel_ops."""

import kernel_reference as reference
import numaserve_kernel_tests as ops
import numpy as np
from kernel_ops import GARBAGE
from kernel_reference import PAGE, U16
from numpy.typing import NDArray


def make_cache(pages: int, dim: int) -> NDArray[np.uint8]:
    """[pages, bytes], full of NaN: what was not written must not be read."""
    return np.full((pages, PAGE * dim), GARBAGE).view(np.uint8)


def put(cache: NDArray[np.uint8], tokens: U16, pages: list[int]) -> None:
    """Bits of tokens [positions, dim] to where the cache keeps them."""
    for index, page in enumerate(pages):
        part = tokens[index * PAGE : (index + 1) * PAGE]
        cache[page] = reference.pack_k(np.pad(part, [(0, PAGE - len(part)), (0, 0)])).view(np.uint8)


def attention(
    isa: str,
    q: U16,
    latent: int,
    cache: NDArray[np.uint8],
    sequences: list[tuple[int, int, int]],
    page_tables: list[list[int]],
    *,
    scale: float,
    by_blocks: bool = False,
    blocks: tuple[int, int] = (0, 1),
    rows_per_item: int = 256,
) -> U16:
    """Attention of q [tokens, heads, dim]: [tokens, heads, latent]. A sequence is (row, new tokens, start). See
    `kernel_ops.attention` for `blocks`."""
    tokens, heads = q.shape[:2]
    width = max(len(table) for table in page_tables)
    pages = np.array([table + [0] * (width - len(table)) for table in page_tables], np.int32)
    out = np.full((tokens, heads * latent), GARBAGE)
    plan = np.array(sequences, np.int32)
    cut = blocks if by_blocks else (0, 0)
    ops.latent_attention(isa, q, latent, cache, plan, pages, scale, *cut, rows_per_item, out)
    return out.reshape(tokens, heads, latent)
