"""Plans of a step's attention: each row attends each block that it sees once, and threads have equal work."""

from dataclasses import dataclass
from typing import NamedTuple

import numaserve_kernel_tests as ops
import numpy as np
import pytest
from numaserve.kernels import Program

BLOCK, PAGES = 256, 2048  # tokens of a block; pages of 32 tokens that a sequence may have
LATENTS, HEADS = (22, 1), (16, 2)
UNEVEN, OTHERS = (13, 3), (6, 5)  # KV heads with 2, 8 and 3 query heads
THREADS = (1, 3, 43)

Sequence = tuple[int, int]  # start, new tokens


class Item(NamedTuple):
    """Rows of an item, and its blocks: `blocks` of them from `block` on, or all blocks that its rows see if that is
    -1."""

    sequence: int
    kv_head: int
    first_row: int
    num_rows: int
    block: int
    blocks: int
    joined: bool
    partial: int


class Merge(NamedTuple):
    """Partial results of some rows: `parts` of them, `stride` apart."""

    sequence: int
    kv_head: int
    first_row: int
    num_rows: int
    partial: int
    parts: int
    stride: int


@dataclass(frozen=True)
class Plan:
    """The plan of sequences; `heads`: of queries, and of keys and values. `others`: query heads of these KV heads that
    lower and higher ranks have. `groups`: see `BlockGroups`."""

    sequences: list[Sequence]
    heads: tuple[int, int] = HEADS
    others: tuple[int, int] = (0, 0)
    latent: bool = False
    window: int = 0
    groups: tuple[int, int] = (1, -1)
    threads: int = 43
    pages: int = PAGES

    def made(self) -> tuple[list[Item], list[Merge]]:
        options = (self.heads, self.others, self.latent, self.window, self.groups, self.pages, self.threads)
        items, merges = ops.attention_plan(self.sequences, *options)
        return [Item(*item) for item in items], [Merge(*merge) for merge in merges]

    def group(self, kv_head: int) -> int:
        """The number of query heads of a KV head."""
        (lower, higher), (query, kv) = self.others, self.heads
        each = (lower + query + higher) // kv
        return len(set(range(kv_head * each, (kv_head + 1) * each)) & set(range(lower, lower + query)))

    def visible(self, item: Item) -> list[int]:
        """The blocks that some row of an item sees."""
        start, group = self.sequences[item.sequence][0], self.group(item.kv_head)
        first, last = (start + row // group for row in (item.first_row, item.first_row + item.num_rows - 1))
        blocks = range(max(first - self.window + 1, 0) // BLOCK if self.window else 0, last // BLOCK + 1)
        world, rank = self.groups
        return [block for block in blocks if rank < 0 or block % world == rank]

    def blocks(self, item: Item) -> list[int]:
        """The blocks of an item."""
        if item.block < 0:
            return self.visible(item)
        world, rank = self.groups
        return [item.block + i * (world if rank >= 0 else 1) for i in range(item.blocks)]

    def cost(self, item: Item) -> float:
        """The computation of an item: rows, with what is done once for them, and the tokens of its blocks."""
        blocks = self.blocks(item)
        start, group = self.sequences[item.sequence][0], self.group(item.kv_head)
        seen = start + (item.first_row + item.num_rows - 1) // group + 1
        tokens = sum(min(seen - block * BLOCK, BLOCK) for block in blocks)
        return tokens * (item.num_rows + 16)


SEQUENCES: dict[str, list[Sequence]] = {
    "one token": [(0, 1)],
    "a token of a long sequence": [(60_000, 1)],
    "a prompt": [(0, 700)],
    "a chunk of a long prompt": [(60_000, 512)],
    "some tokens of a long sequence": [(60_000, 40)],
    "short sequences": [(1000, 1)] * 16,
    "more sequences than threads": [(1000, 1)] * 90,
    "one long sequence among short ones": [(1000, 1)] * 40 + [(60_000, 1)] + [(1000, 1)] * 50,
    "a long sequence and a prompt": [(60_000, 1), (0, 512)],
    "more long sequences than there is memory for": [(60_000, 1)] * 20,
    "sequences of all lengths": [(17 * i * i, 1 + i % 5) for i in range(30)],
}
KINDS = {
    "heads": {"heads": HEADS},
    "uneven heads": {"heads": UNEVEN, "others": OTHERS},
    "a head that is not read": {"heads": (9, 3), "others": (10, 5)},
    "a window": {"heads": HEADS, "window": 1000},
    "latents": {"heads": LATENTS, "latent": True},
    "groups of latents": {"heads": LATENTS, "latent": True, "groups": (6, -1)},
    "a group of latents": {"heads": (128, 1), "latent": True, "groups": (6, 2)},
}

every_plan = pytest.mark.parametrize(
    "plan",
    [
        pytest.param(Plan(sequences, threads=threads, **kind), id=f"{name}*{of}*{threads}")  # type: ignore[arg-type]
        for name, sequences in SEQUENCES.items()
        for of, kind in KINDS.items()
        for threads in THREADS
    ],
)


@every_plan
def test_each_row_attends_each_block_that_it_sees_once(plan: Plan) -> None:
    by_sequence: list[list[Item]] = [[] for _ in plan.sequences]
    for item in plan.made()[0]:
        by_sequence[item.sequence].append(item)
    for sequence, (start, count) in enumerate(plan.sequences):
        blocks = (start + count - 1) // BLOCK + 1
        attended = [np.zeros((count * plan.group(head), blocks), np.int8) for head in range(plan.heads[1])]
        for item in by_sequence[sequence]:
            assert item.first_row + item.num_rows <= len(attended[item.kv_head])
            rows = slice(item.first_row, item.first_row + item.num_rows)
            attended[item.kv_head][rows, plan.blocks(item)] += 1
        for head, by_row in enumerate(attended):
            assert by_row.max(initial=0) <= 1
            group = plan.group(head)
            for row in range(0, len(by_row), group or 1):  # query heads of a token see the same blocks
                assert by_row[row : row + group, plan.visible(Item(sequence, head, row, group, -1, 0, False, 0))].all()


@every_plan
def test_each_partial_result_is_written_once_and_merged_once_in_the_order_of_blocks(plan: Plan) -> None:
    items, merges = plan.made()
    # The rows that write each row of partial results, [sequence, KV head, row, first block].
    written = np.full((Program.partial_rows(plan.pages), 4), -1)
    for item in (each for each in items if each.block >= 0):
        rows = np.arange(item.first_row, item.first_row + item.num_rows)
        for index, block in enumerate(plan.blocks(item)[: 1 if item.joined else None]):
            own = written[item.partial + index * item.num_rows :][: item.num_rows]
            assert (own == -1).all()
            own[:] = np.stack(np.broadcast_arrays(item.sequence, item.kv_head, rows, block), axis=1)
    merged = np.zeros(len(written), np.int8)
    for merge in merges:
        for row in range(merge.num_rows):
            parts = merge.partial + row + merge.stride * np.arange(merge.parts)
            assert len(parts) > 1
            assert (written[parts, :3] == (merge.sequence, merge.kv_head, merge.first_row + row)).all()
            assert (np.diff(written[parts, 3]) > 0).all()
            merged[parts] += 1
    np.testing.assert_array_equal(merged, written[:, 0] >= 0)


@every_plan
def test_a_joined_item_has_the_first_blocks_of_its_rows(plan: Plan) -> None:
    """Blocks are merged in order, whether an item merges the first ones at once or not. Where they are merged in
    groups, none may be joined."""
    items, _ = plan.made()
    joined = [item for item in items if item.joined]
    assert all(plan.blocks(item) == plan.visible(item)[: item.blocks] for item in joined)
    world, rank = plan.groups
    assert rank >= 0 or world == 1 or not joined


@every_plan
def test_the_same_sequences_have_the_same_plan(plan: Plan) -> None:
    assert plan.made() == plan.made()


@pytest.mark.parametrize("kind", ["heads", "latents", "a group of latents"])
def test_items_of_tokens_are_handed_out_largest_first(kind: str) -> None:
    plan = Plan([(500 * i, 1) for i in range(1, 30)], threads=3, **KINDS[kind])  # type: ignore[arg-type]
    items, _ = plan.made()
    blocks = [len(plan.blocks(item)) for item in items]
    assert len(set(blocks)) > 5
    assert blocks == sorted(blocks, reverse=True)


def busiest(plan: Plan) -> float:
    """The cost of the busiest thread over the mean, where each takes the next item when it is free."""
    loads = np.zeros(plan.threads)
    costs = [plan.cost(item) for item in plan.made()[0]]
    for cost in costs:
        loads[np.argmin(loads)] += cost
    return float(loads.max() / loads.mean())


MIXED = [
    "a token of a long sequence",
    "a chunk of a long prompt",
    "one long sequence among short ones",
    "a long sequence and a prompt",
    "more sequences than threads",
]


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("kind", ["heads", "uneven heads", "latents", "groups of latents"])
def test_threads_have_equal_work(name: str, kind: str) -> None:
    assert busiest(Plan(SEQUENCES[name], **KINDS[kind])) < 1.12  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [2, 3, 7, 16])
def test_a_sequence_is_cut_only_if_threads_would_wait(threads: int) -> None:
    """Each thread takes one of the equal sequences; a sequence of half the length has no thread left. Three sequences
    of nearly one length for each thread are whole too."""
    heads = (8, 1)
    _, merges = Plan([(4000, 1)] * threads, heads, threads=threads).made()
    assert merges == []
    _, merges = Plan([(4000, 1)] * threads + [(2000, 1)], heads, threads=threads).made()
    assert {merge.sequence for merge in merges} <= {threads - 1, threads}
    assert merges
    similar = [(1000 + 10 * (each % 5), 1) for each in range(3 * threads)]
    assert Plan(similar, heads, threads=threads).made()[1] == []


def test_rows_share_the_memory_for_partial_results() -> None:
    """64 tokens after a long prefix: 32 items for 43 threads, and memory for a quarter of their partial results."""
    plan = Plan([(64_000, 64)])
    items, _ = plan.made()
    rows = sum(item.num_rows * (1 if item.joined else item.blocks) for item in items if item.block >= 0)
    assert 0.9 < rows / Program.partial_rows(PAGES) <= 1
    assert busiest(plan) < 1.15
