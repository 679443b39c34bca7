"""A reader of KV events as others write them: vLLM's published schema, and an index of what is cached."""

import sys
from collections.abc import Collection, Iterable
from types import ModuleType

import msgspec
import zmq
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.cache.anchors import Anchors
from numaserve.server.scheduler.cache.keys import contents_of
from numaserve.server.scheduler.cache.radix_tree import Node, RadixTree

END = (-1).to_bytes(8, "big", signed=True)
Block = tuple[object, ...]  # the adapter's name, if there is one; tokens, and then what vLLM calls extra keys
Prefix = tuple[Block, ...]  # block by block


class _Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """vLLM's KVCacheEvent; what tags it is the name of each class below."""


class BlockStored(_Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[object, ...] | None] | None = None


class BlockRemoved(_Event):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(_Event):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Index:
    """The blocks that a server has told of. Fails for whatever does not follow from what was told before.

    `schema` has the classes that messages are read by: this module's, or those of an engine's own module.
    """

    def __init__(self, schema: ModuleType = sys.modules[__name__]) -> None:
        self.blocks: dict[int, tuple[int | None, Block]] = {}  # in memory
        self.on_disk: dict[int, tuple[int | None, Block]] = {}
        self._schema = schema

    def apply(self, payload: bytes) -> None:
        batch = msgspec.msgpack.decode(payload, type=self._schema.KVEventBatch)
        assert msgspec.structs.astuple(batch)[2] == 0, "the rank among data parallel servers"
        for event in batch.events:
            if isinstance(event, self._schema.BlockStored):
                self._store(event)
            elif isinstance(event, self._schema.BlockRemoved):
                blocks = self._blocks(event)
                for block in event.block_hashes:
                    # A page on disk may be damaged, and those after it are still there.
                    assert event.medium or all(parent != block for parent, _ in blocks.values()), "it has children"
                    del blocks[block]
            else:
                assert isinstance(event, self._schema.AllBlocksCleared)
                self.blocks.clear()
                self.on_disk.clear()

    def prefixes(self) -> set[Prefix]:
        found = [self._prefix(block, self.blocks) for block in self.blocks]
        assert len(set(found)) == len(found), "two blocks are the same"
        return set(found)

    def prefixes_on_disk(self) -> set[Prefix]:
        """The prefixes whose blocks are all on disk."""
        found = {block: self._prefix(block, self.on_disk) for block in self.on_disk}
        return {prefix for prefix in found.values() if prefix}

    def _blocks(self, event: BlockStored | BlockRemoved) -> dict[int, tuple[int | None, Block]]:
        assert event.medium in (None, "DISK")
        return self.on_disk if event.medium else self.blocks

    def _store(self, event: BlockStored) -> None:
        told = {name for name in event.__struct_fields__ if getattr(event, name) is not None}
        optional = {"parent_block_hash", "extra_keys", "lora_name", "medium"}
        assert told - optional == {"block_hashes", "token_ids", "block_size"}
        blocks = self._blocks(event)
        extra_keys = getattr(event, "extra_keys", None) or [None] * len(event.block_hashes)
        assert len(extra_keys) == len(event.block_hashes)
        assert len(event.token_ids) == len(event.block_hashes) * event.block_size
        parent = event.parent_block_hash
        for index, block in enumerate(event.block_hashes):
            assert parent is None or parent in blocks or event.medium
            assert block not in blocks
            tokens = event.token_ids[index * event.block_size : (index + 1) * event.block_size]
            adapter = () if event.lora_name is None else (event.lora_name,)
            blocks[block] = (parent, (*adapter, *tokens, *map(_as_tuple, extra_keys[index] or ())))
            parent = block

    @staticmethod
    def _prefix(block: int, blocks: dict[int, tuple[int | None, Block]]) -> Prefix:
        """All blocks up to this one; none if one is missing."""
        steps: list[Block] = []
        step: int | None = block
        while step is not None:
            if step not in blocks:
                return ()
            step, tokens = blocks[step]
            steps.insert(0, tokens)
        return tuple(steps)


def _as_tuple(extra_key: object) -> object:
    return tuple(extra_key) if isinstance(extra_key, list) else extra_key


class Subscriber:
    """Reads a server's events, and asks again for those that it has missed."""

    def __init__(self, endpoint: str, replay: str, topic: str = "", schema: ModuleType = sys.modules[__name__]) -> None:
        self.index = Index(schema)
        self.next = 0
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.subscribe(topic)
        self._events.connect(endpoint)
        self._again = self._context.socket(zmq.DEALER)
        self._again.connect(replay)

    def read(self, *, lose: Iterable[int] = (), wait_ms: int = 0) -> None:
        """Take in what has come, but for messages with the numbers `lose`, which are lost on the way."""
        while self._events.poll(wait_ms):
            _, number, payload = self._events.recv_multipart()
            if int.from_bytes(number, "big") not in lose:
                self._take(int.from_bytes(number, "big"), payload)

    def catch_up(self) -> None:
        """Ask for all that is missing, up to now."""
        self._again.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            assert self._again.poll(20_000)
            delimiter, _, number, payload = self._again.recv_multipart()
            assert delimiter == b""
            if number == END:
                assert payload == b""
                return
            # What is missing may come as one batch, of the number of the last.
            assert int.from_bytes(number, "big") >= self.next
            self.index.apply(payload)
            self.next = int.from_bytes(number, "big") + 1

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _take(self, number: int, payload: bytes) -> None:
        if number > self.next:
            self.catch_up()
        if number == self.next:
            self.index.apply(payload)
            self.next += 1


def told_prefixes(tree: RadixTree, anchors: Anchors | None = None, withdrawn: Collection[Adapter] = ()) -> set[Prefix]:
    """The prefixes that events should have reported: all that can be found in public scopes, and reused, but for those
    of adapters that serve their last requests."""
    found = {node for node in tree.nodes() if node.scope.public and not node.hidden}
    found = {node for node in found if node.scope.adapter not in withdrawn}
    if anchors is not None:
        found = {above for node in found if anchors.at(node) is not None for above in _from_root(node)}
    return {_path(node) for node in found if node.parent is not None}


def _from_root(node: Node) -> list[Node]:
    return [*(_from_root(node.parent) if node.parent is not None else []), node]


def _path(node: Node) -> Prefix:
    """The blocks that events report for the path to a node, in a model whose placeholder is token 0."""
    steps: list[Block] = []
    while node.parent is not None:
        tokens = (0 if isinstance(each, bytes) else each for each in node.key)
        adapter = () if node.scope.adapter is None else (node.scope.adapter.name,)
        steps.insert(0, (*adapter, *tokens, *contents_of(node.key)))
        node = node.parent
    return tuple(steps)
