"""The native operations of multi-head latent attention on arrays of any shape; see kernel_ops."""

from dataclasses import dataclass

import kernel_reference as reference
import numaserve_kernel_tests as ops
import numpy as np
from kernel_ops import GARBAGE
from kernel_reference import F32, PAGE, U16
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dims:
    """Query heads, and sizes: of a query's part without positions, its rotated part, and the latent."""

    heads: int
    nope: int
    rope: int
    latent: int

    @property
    def query(self) -> int:
        """Of an absorbed query, and of a token of the cache."""
        return self.latent + self.rope


def make_cache(pages: int, dim: int) -> NDArray[np.uint8]:
    """[pages, bytes], full of NaN: what was not written must not be read."""
    return np.full((pages, PAGE * dim), GARBAGE).view(np.uint8)


def put(cache: NDArray[np.uint8], tokens: U16, pages: list[int]) -> None:
    """Bits of tokens [positions, dim] to where the cache keeps them."""
    for index, page in enumerate(pages):
        part = tokens[index * PAGE : (index + 1) * PAGE]
        cache[page] = reference.pack_k(np.pad(part, [(0, PAGE - len(part)), (0, 0)])).view(np.uint8)


def take(cache: NDArray[np.uint8], pages: list[int]) -> U16:
    """Bits of the tokens of pages, [positions, dim]."""
    return np.concatenate([reference.unpack_k(cache[page].view(np.uint16)) for page in pages])


def store(
    isa: str,
    q: F32,
    kv: F32,
    dims: Dims,
    cache: NDArray[np.uint8],
    runs: list[tuple[int, int, int, int]],
    tables: tuple[F32, F32],
    norm: F32,
    eps: float,
    threads: int = 1,
    *,
    q_scale: F32 | None = None,
) -> tuple[U16, U16]:
    """Takes q [tokens, heads * (nope + rope)] apart and stores kv [tokens, latent + rope]; a run is (row, count,
    position, page). Returns the parts without positions [tokens, heads, nope], and the rotated ones."""
    nope = np.full((len(q), dims.heads * dims.nope), GARBAGE)
    query = np.full((len(q), dims.heads, dims.query), GARBAGE)
    pages = np.array(runs, np.int32)
    sizes = (dims.heads, dims.nope, dims.latent)
    ops.latent_store(isa, q, kv, *sizes, *tables, q_scale, norm, eps, pages, nope, query, cache, threads)
    assert (query[..., : dims.latent] == GARBAGE).all()
    return nope.reshape(len(q), dims.heads, dims.nope), query[..., dims.latent :]


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
