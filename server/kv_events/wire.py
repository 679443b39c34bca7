"""The messages of KV events, byte for byte those of vLLM.

vLLM's messages are in ``vllm/distributed/kv_events.py``: MessagePack of msgspec structs. The batch is an array. The
events in it are maps, tagged with their names; until pull request 42892 of June 2026 they were arrays, too. SGLang
writes maps as well, and llm-d's readers and Dynamo's accept both. Arrays are not sent, as vLLM's own current classes do
not read them. Every field is written, since vLLM's reader requires `medium` and `lora_name`, and Dynamo's reader a
batch of three positions. The field `extra_keys` is written for images only: readers of text need none. vLLM puts an
adapter's name there too, between images, and llm-d's reader took such names for images (issue 2927): `lora_name` alone
names the adapter here.
"""

from collections.abc import Iterable, Sequence

import msgspec
from numaserve.server.scheduler.cache.keys import Content
from numaserve.server.scheduler.cache.kv_events import KVEvent, PagesRemoved, PagesStored

# The medium of blocks on disk: SGLang's name for a local disk. All versions of Dynamo know it. vLLM's own offloading to
# files has the medium "STORAGE", which Dynamo knows since July 2026 alone; llm-d takes any name.
DISK = "DISK"


class BlockStored(msgspec.Struct, tag=True, gc=False):
    """Blocks that are cached from now on, each after the block before it, the first after `parent_block_hash`."""

    block_hashes: list[int]  # unsigned, 64 bits
    parent_block_hash: int | None
    token_ids: list[int]  # of all blocks
    block_size: int  # tokens of each block
    lora_id: int | None = None
    medium: str | None = None  # `DISK`, or None: the memory that the model computes from, which vLLM calls "GPU"
    lora_name: str | None = None  # of the adapter that the blocks are computed with; None: the model alone
    # The images in each block, by digest, with their first positions relative to the block. All images have the same
    # token ids, so a reader that leaves this out takes one image for another.
    extra_keys: list[Sequence[Content] | None] | msgspec.UnsetType = msgspec.UNSET


class BlockRemoved(msgspec.Struct, tag=True, gc=False):
    """Blocks that are no longer cached."""

    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """The removal of all cached blocks."""


class KVEventBatch(msgspec.Struct, array_like=True, gc=False):
    """The changes between two moments, in order."""

    ts: float  # seconds since 1970
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(KVEventBatch)


def encode(events: Iterable[KVEvent], page_size: int, seconds: float) -> bytes:
    """Return a batch of `events` at `seconds` since 1970."""
    return _encoder.encode(KVEventBatch(seconds, [_message(event, page_size) for event in events]))


def decode(payload: bytes) -> KVEventBatch:
    """Return the batch of an encoded `payload`."""
    return _decoder.decode(payload)


def _message(event: KVEvent, page_size: int) -> BlockStored | BlockRemoved | AllBlocksCleared:
    if isinstance(event, PagesStored):
        stored = BlockStored(event.digests, event.parent, event.tokens, page_size, lora_name=event.adapter)
        stored.medium = DISK if event.on_disk else None
        if event.contents:
            stored.extra_keys = [event.contents.get(digest) for digest in event.digests]
        return stored
    if isinstance(event, PagesRemoved):
        return BlockRemoved(event.digests, DISK if event.on_disk else None)
    return AllBlocksCleared()
