"""The shape and size of the keys and values that layers cache."""

from __future__ import annotations

from dataclasses import dataclass

from numaserve.workers.layers.axes import Axis
from numaserve.workers.program.handles import BF16_BYTES, TILE_COLUMNS, round_up
from numaserve.workers.protocol import PAGE_SIZE
from numaserve.workers.settings import KvCacheDtype


@dataclass(frozen=True)
class KvShape:
    """A key and a value for each KV head; all layers of a program have the same.

    A latent cache has one head: it is `head_dim` wide, and its first `value_dim` dimensions are the values; 0 where the
    cache is not latent.
    """

    queries: Axis
    keys: Axis
    head_dim: int
    value_dim: int = 0


def page_bytes(kv_heads: int, head_dim: int, dtype: KvCacheDtype) -> int:
    """Memory of a page of keys and values, each head padded to whole tiles. int8 and fp8_e4m3 are a byte a value and a
    bf16 scale for each token's key and value of a head."""
    head = round_up(head_dim, TILE_COLUMNS)
    head_bytes = head * BF16_BYTES if dtype == "bf16" else head + BF16_BYTES
    return 2 * kv_heads * PAGE_SIZE * head_bytes
