"""The index: what a start finds after any damage, and after any moment of death."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.kv_disk.cells import CELL_BYTES, HEADER_BYTES, HeaderError
from numaserve.server.kv_disk.index import INDEX_NAME, Index
from numaserve.server.scheduler.disk.changes import Added, Change, Cleared, Dropped, Used

from tests.support.damage import write_at
from tests.unit.kv_disk.index_samples import (
    HEADER,
    NUM_SLOTS,
    digest_of,
    entry_of,
    make_index,
    nodes_of,
    restored,
    sample_changes,
    without_times,
)

CHANGES = sample_changes()


def live_after(changes: list[Change]) -> set[tuple[str, object]]:
    """The nodes that changes leave, by a plain dictionary."""
    slots: dict[tuple[str, int], Added] = {}
    for change in changes:
        if isinstance(change, Cleared):
            slots.clear()
        elif isinstance(change, Added):
            slots[change.kind, change.entry.slot] = change
        elif isinstance(change, Dropped):
            slots = {
                place: added
                for place, added in slots.items()
                if (added.kind, added.entry.digest) != (change.kind, change.digest)
            }
        else:
            for place, (kind, entry) in slots.items():
                if (kind, entry.digest) == (change.kind, change.digest):
                    slots[place] = Added(kind, entry._replace(used_at=change.at))
    return {(added.kind, added.entry) for added in slots.values()}


def ever_added() -> set[tuple[str, object]]:
    return without_times((change.kind, change.entry) for change in CHANGES if isinstance(change, Added))  # type: ignore[return-value]


def test_a_start_finds_what_the_changes_left(tmp_path: Path) -> None:
    make_index(tmp_path, CHANGES)
    entries, num_damaged = restored(tmp_path)
    assert nodes_of(entries) == live_after(CHANGES)
    assert num_damaged == 0
    assert len(nodes_of(entries)) == 12
    assert (tmp_path / INDEX_NAME).stat().st_mode & 0o777 == 0o600


def test_an_index_that_was_cut_at_any_byte_has_the_changes_before_it(tmp_path: Path) -> None:
    make_index(tmp_path, CHANGES)
    path = tmp_path / INDEX_NAME
    found: list[int] = []
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)  # not written again, for which some file systems wait for the disk
        if length < HEADER_BYTES:
            with pytest.raises(HeaderError):
                restored(tmp_path)
        else:
            entries, num_damaged = restored(tmp_path)
            assert num_damaged == 0
            assert without_times(nodes_of(entries)) <= ever_added()
            found.append(len(nodes_of(entries)))
    # Before the last cell: the last but one added node, at each byte of the last cell.
    assert found[:CELL_BYTES] == [11] * CELL_BYTES
    assert found[-1] == 0


def test_a_flipped_byte_loses_at_most_its_own_cell_and_never_makes_another_node(tmp_path: Path) -> None:
    make_index(tmp_path, CHANGES)
    path = tmp_path / INDEX_NAME
    whole = path.read_bytes()
    for place in range(len(whole)):
        write_at(path, place, bytes([whole[place] ^ 0x10]))
        if place < HEADER_BYTES:
            with pytest.raises(HeaderError):
                restored(tmp_path)
        else:
            entries, num_damaged = restored(tmp_path)
            assert num_damaged == 1
            assert without_times(nodes_of(entries)) <= ever_added()
            # The name of a group may be damaged, which several nodes have.
            assert len(nodes_of(entries)) >= 12 - 4
        write_at(path, place, whole[place : place + 1])


def test_a_cell_at_another_place_or_of_another_file_is_no_cell(tmp_path: Path) -> None:
    make_index(tmp_path, CHANGES)
    path = tmp_path / INDEX_NAME
    earlier = path.read_bytes()
    make_index(tmp_path, CHANGES)
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + earlier[HEADER_BYTES:])
    assert nodes_of(restored(tmp_path)[0]) == set()
    path.write_bytes(earlier[:HEADER_BYTES] + earlier[HEADER_BYTES + CELL_BYTES :])
    assert nodes_of(restored(tmp_path)[0]) == set()


def test_an_index_that_goes_on_after_damage_and_is_compacted_keeps_what_is_live(tmp_path: Path) -> None:
    make_index(tmp_path, CHANGES)
    path = tmp_path / INDEX_NAME
    data = bytearray(path.read_bytes())
    group = next(at for at in range(HEADER_BYTES, len(data), CELL_BYTES) if b"key a" in data[at : at + CELL_BYTES])
    data[group + 40] ^= 1
    path.write_bytes(bytes(data) + b"torn")
    fd = os.open(tmp_path, os.O_RDONLY)
    index = Index.open(fd, NUM_SLOTS)
    entries, _ = index.restore()
    before = nodes_of(entries)
    assert {entry.group for _, entry in before} == {"", "group b", "key c"}
    later: list[Change] = [Added("pages", entry_of(30, group="key d")), Used("pages", digest_of(30), 900)]
    index.append(later)
    expected = before | {("pages", entry_of(30, group="key d", at=900))}
    assert nodes_of(restored(tmp_path)[0]) == expected
    size = path.stat().st_size
    index.compact()
    index.append([Used("pages", digest_of(30), 901)])
    assert path.stat().st_size < size
    assert nodes_of(restored(tmp_path)[0]) == before | {("pages", entry_of(30, group="key d", at=901))}
    index.append([Cleared(), Added("pages", entry_of(0))])
    assert nodes_of(restored(tmp_path)[0]) == {("pages", entry_of(0))}
    index.close()
    os.close(fd)


def test_an_index_grows_to_at_most_twice_its_live_nodes(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    index = Index.create(fd, HEADER, NUM_SLOTS)
    for number in range(300):
        index.append([Added("pages", entry_of(each, slot=each % 64)) for each in range(number * 64, number * 64 + 64)])
        if index.is_mostly_dead:
            index.compact()
        assert (tmp_path / INDEX_NAME).stat().st_size < HEADER_BYTES + (2 * 64 + 4096 + 128) * CELL_BYTES
    index.close()
    os.close(fd)
    assert len(nodes_of(restored(tmp_path)[0])) == 64


def write_until_killed(folder: Path, done: int) -> None:
    """Append nodes and compact, and write the number of each batch that is on disk to `done`."""
    fd = os.open(folder, os.O_RDONLY)
    index = Index.open(fd, NUM_SLOTS)
    entries, _ = index.restore()
    number = max((entry.depth for entry in entries["pages"]), default=0)
    while True:
        number += 1
        batch = [Added("pages", entry_of(8 * number + 1)._replace(slot=number % 64, depth=number)) for _ in range(1)]
        index.append(batch)
        os.write(done, number.to_bytes(8, "little"))
        if number % 7 == 0:
            index.compact()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_writer_that_is_killed_at_any_moment_leaves_all_that_it_had_synced(
    tmp_path: Path, pipe: tuple[int, int]
) -> None:
    make_index(tmp_path)
    last = 0
    for kill in range(25):
        child = os.fork()
        if child == 0:
            write_until_killed(tmp_path, pipe[1])
        for _ in range(3 + kill % 8):
            last = int.from_bytes(os.read(pipe[0], 8), "little")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.set_blocking(pipe[0], False)
        while True:
            try:
                last = int.from_bytes(os.read(pipe[0], 8), "little")
            except BlockingIOError:
                break
        os.set_blocking(pipe[0], True)
        entries, num_damaged = restored(tmp_path)
        assert num_damaged == 0
        depths = {entry.depth for entry in entries["pages"]}
        # The one after it may be on disk too: it was killed before it could say so.
        assert depths - {last + 1} == set(range(max(1, max(depths) - 63), last + 1))


def test_a_compaction_that_ends_early_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    make_index(tmp_path, CHANGES)
    before = (tmp_path / INDEX_NAME).read_bytes()
    fd = os.open(tmp_path, os.O_RDONLY)
    index = Index.open(fd, NUM_SLOTS)

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        index.compact(stop)
    index.append([Added("pages", entry_of(40))])
    index.close()
    os.close(fd)
    assert (tmp_path / INDEX_NAME).read_bytes()[: len(before)] == before
    assert nodes_of(restored(tmp_path)[0]) == live_after(CHANGES) | {("pages", entry_of(40))}
    assert [path.name for path in tmp_path.iterdir()] == [INDEX_NAME]
