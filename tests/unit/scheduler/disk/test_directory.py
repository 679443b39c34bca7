"""The directory against a slow one, over random operations; what it takes; what comes back after a restart."""

import hashlib
import random
import tracemalloc

import pytest
from numaserve.server.scheduler.disk.directory import DiskDirectory, Entry


def digest_of(*path: object) -> bytes:
    return hashlib.sha256(repr(path).encode()).digest()


class SlowDirectory:
    """The same rules, looked up in a list each time."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.nodes: dict[bytes, Entry] = {}
        self.taken: set[int] = set()

    def use(self, digests: list[bytes], now: int) -> None:
        for digest in digests:
            self.nodes[digest] = self.nodes[digest]._replace(used_at=now)

    def path_of(self, digest: bytes) -> list[bytes]:
        path: list[bytes] = []
        while digest in self.nodes:
            path.append(digest)
            digest = self.nodes[digest].parent
        return path[::-1]

    def leaves(self) -> set[bytes]:
        return set(self.nodes) - {node.parent for node in self.nodes.values()}

    def add(self, entry: Entry) -> None:
        self.nodes[entry.digest] = entry
        self.taken.discard(entry.slot)
        self.use(self.path_of(entry.digest), entry.used_at)


class Pair:
    """Both directories, which must agree after each operation."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000
        self.slow = SlowDirectory(self.random.choice([1, 2, 5, 40]))
        self.fast = DiskDirectory(self.slow.num_slots)

    def step(self) -> None:
        self.now += self.random.choice([0, 0, 1, 50])
        self.random.choice(
            [self.add, self.add, self.add, self.use, self.drop, self.expire, self.groups, self.restore]
        )()
        assert sorted(self.fast.entries()) == sorted(self.slow.nodes.values())
        assert len(self.fast) == len(self.slow.nodes)
        assert all(self.fast.slot_of(each.digest) == each.slot for each in self.slow.nodes.values())

    def add(self) -> None:
        parents: list[bytes] = [b"", *self.slow.nodes]
        parent = self.random.choice(parents)
        digest = digest_of(parent, self.random.randrange(3))
        if digest in self.slow.nodes:
            return
        slot = self.take_slot()
        if slot is None:
            return
        if self.random.random() < 0.1:
            self.slow.taken.add(slot)  # being written
            return
        if self.random.random() < 0.1:
            self.fast.give_back(slot)
            return
        # Its parent may just have been evicted for it.
        depth = len(self.slow.path_of(parent)) + 1
        entry = Entry(slot, digest, parent, depth, self.random.choice(["", "a", "b"]), self.now)
        self.slow.add(entry)
        self.fast.add(entry)

    def take_slot(self) -> int | None:
        taken, nodes = self.fast.take_slot(), self.slow.nodes
        if len(nodes) + len(self.slow.taken) < self.slow.num_slots:
            assert taken is not None
            assert taken[1] is None
        elif not nodes:
            assert taken is None
            if self.slow.taken:
                self.fast.give_back(self.slow.taken.pop())
            return None
        else:
            assert taken is not None
            evicted = taken[1]
            assert evicted is not None
            assert evicted in self.slow.leaves()
            # As old as the oldest: nothing that was used earlier is left.
            assert nodes[evicted].used_at == min(node.used_at for node in nodes.values())
            assert nodes.pop(evicted).slot == taken[0]
        assert taken[0] not in self.slow.taken | {node.slot for node in nodes.values()}
        assert taken[0] < self.slow.num_slots
        return taken[0]

    def use(self) -> None:
        if self.slow.nodes:
            path = self.slow.path_of(self.random.choice(list(self.slow.nodes)))
            self.slow.use(path, self.now)
            self.fast.use(path, self.now)

    def drop(self) -> None:
        # A leaf: whether a node below it is reached again is for the next test.
        digest = self.random.choice([*self.slow.leaves(), b"missing"])
        self.slow.nodes.pop(digest, None)
        self.fast.drop(digest)

    def expire(self) -> None:
        before = self.now - self.random.choice([0, 30, 200])
        old = {digest for digest, node in self.slow.nodes.items() if node.used_at < before}
        self.erased(self.fast.expire(before), old)

    def groups(self) -> None:
        if self.random.random() < 0.1:
            gone = {digest: node.slot for digest, node in self.slow.nodes.items() if node.group not in ("", "a")}
            if any(node.parent in gone and digest not in gone for digest, node in self.slow.nodes.items()):
                return  # groups share no path in the server
            self.erased(self.fast.drop_groups(["", "a"]), set(gone))

    def erased(self, dropped: list[tuple[int, bytes]], expected: set[bytes]) -> None:
        """Check that these nodes are gone; some of their slots are not erased yet."""
        assert set(dropped) == {(self.slow.nodes[digest].slot, digest) for digest in expected}
        for slot, digest in dropped:
            del self.slow.nodes[digest]
            if self.random.random() < 0.8:
                self.fast.give_back(slot)
            else:
                self.slow.taken.add(slot)

    def restore(self) -> None:
        entries = list(self.fast.entries())
        self.random.shuffle(entries)
        self.fast = DiskDirectory(self.slow.num_slots, entries)
        self.slow.taken.clear()


@pytest.mark.parametrize("seed", range(40))
def test_it_agrees_with_a_directory_that_looks_everything_up(seed: int) -> None:
    pair = Pair(seed)
    for _ in range(300):
        pair.step()


def test_a_path_whose_middle_was_dropped_is_evicted_in_time_and_found_again_when_the_middle_returns() -> None:
    chain = [digest_of(depth) for depth in range(4)]
    directory = DiskDirectory(4)
    for slot, digest in enumerate(chain):
        taken = directory.take_slot()
        assert taken is not None
        directory.add(Entry(taken[0], digest, chain[slot - 1] if slot else b"", slot + 1, "", 10))
    directory.drop(chain[1])
    taken = directory.take_slot()
    assert taken == (1, None)
    directory.add(Entry(1, chain[1], chain[0], 2, "", 11))
    directory.use(chain, 12)
    assert [directory.take_slot() for _ in range(5)] == [
        (3, chain[3]),
        (2, chain[2]),
        (1, chain[1]),
        (0, chain[0]),
        None,
    ]


def test_times_of_use_that_were_lost_do_not_put_a_parent_before_its_children() -> None:
    chain = [digest_of(depth) for depth in range(3)]
    entries = [
        Entry(slot, chain[slot], chain[slot - 1] if slot else b"", slot + 1, "", used)
        for slot, used in enumerate([1, 5, 3])
    ]
    directory = DiskDirectory(3, entries)
    assert directory.expire(3) == []
    assert [directory.take_slot() for _ in range(3)] == [(2, chain[2]), (1, chain[1]), (0, chain[0])]


def test_a_node_takes_at_most_300_bytes_also_when_it_is_restored() -> None:
    num_nodes, per_prompt = 25_000, 500  # hash tables are as full as with 100,000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        directory = DiskDirectory(2 * num_nodes)
        for number in range(num_nodes):
            depth = number % per_prompt
            taken = directory.take_slot()
            assert taken is not None
            group = f"group {number // per_prompt % 5}"
            parent = (number - 1).to_bytes(32) if depth else b""
            directory.add(Entry(taken[0], number.to_bytes(32), parent, depth + 1, group, number // per_prompt))
        del parent, group, taken
        for _ in range(2):
            assert (tracemalloc.get_traced_memory()[0] - before) / num_nodes <= 300
            assert len(directory) == num_nodes
            directory = DiskDirectory(2 * num_nodes, list(directory.entries()))
    finally:
        tracemalloc.stop()
