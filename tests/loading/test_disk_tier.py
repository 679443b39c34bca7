"""The records of the disk tier: what comes back, and what does not count as what was written."""

import errno
import os
from pathlib import Path

import pytest
from disk_rank import PAGES, SNAPSHOTS, Memory, Rank, anchor, digest, pages
from numaserve.workers.interface.protocol import DiskRecord
from numaserve.workers.kv_disk.records import HEADER_BYTES


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))
        os.fsync(file.fileno())


def test_records_come_back_to_other_memory_and_change_nothing_else(rank: Rank) -> None:
    written = [*pages(2, 5, slot=7), *pages(0, 2, slot=40), anchor(1, [9, 0])]
    assert rank.write(written).done == len(written)
    back = [*pages(12, 5, slot=7), *pages(20, 2, slot=40), anchor(3, [4, 5])]
    expected = Memory()
    for layer in expected.pages:
        layer[12:17], layer[20:22] = layer[2:7].copy(), layer[:2].copy()
    for layer in expected.snapshots:
        layer[3] = layer[1]
    expected.tail[0][[4, 5]] = expected.tail[0][[9, 0]]
    answer = rank.read(back)
    assert (answer.done, answer.problem) == (len(back), "")
    assert answer.nbytes == sum(each.stat().st_blocks * 512 for each in rank.folder.iterdir())
    assert rank.memory.all() == expected.all()
    assert {(each.name, oct(each.stat().st_mode)) for each in rank.folder.iterdir()} == {
        ("rank-0.pages", "0o100600"),
        ("rank-0.anchors", "0o100600"),
    }


def test_neighbours_are_read_at_once_up_to_a_mebibyte(rank: Rank) -> None:
    rank.write(pages(0, PAGES))
    rank.shim.reads.clear()
    rank.read([*pages(0, PAGES // 2), *pages(PAGES // 2, 3, slot=1, step=2)])
    assert sorted(rank.shim.reads) == [rank.ready.page_bytes * n for n in (1, 1, 1, PAGES // 2)]


def test_every_flipped_bit_is_a_miss_from_its_record_on(rank: Rank) -> None:
    size, payload = rank.ready.page_bytes, rank.memory.cache.page_bytes
    for offset in (0, 8, 16, 24, 32, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + payload - 1):
        rank.write(pages(0, 4))
        flip(rank.folder / "rank-0.pages", 2 * size + offset)
        before = rank.memory.pages[0][[12, 13]].copy()
        answer = rank.read(pages(10, 4))
        assert (answer.done, answer.problem, answer.nbytes) == (2, "checksum", 2 * size), offset
        assert (rank.memory.pages[0][[12, 13]] == before).all()


def test_a_record_of_another_prefix_is_told_from_a_damaged_one(rank: Rank) -> None:
    rank.write(pages(0, 3))
    other = DiskRecord(1, digest("other"), page=20)
    assert rank.write([other]).done == 1
    answer = rank.read(pages(10, 3))
    assert (answer.done, answer.problem) == (1, "replaced")
    rank.write([anchor(0, [1, 2])])
    assert rank.read([anchor(0, [1])]).problem == "replaced"  # with as much as another plan would want


BAD = {
    "slot": DiskRecord(-1, digest("a"), page=0),
    "far slot": DiskRecord(1 << 60, digest("a"), page=0),
    "digest": DiskRecord(0, b"short", page=0),
    "page": DiskRecord(0, digest("a"), page=PAGES),
    "snapshot": DiskRecord(0, digest("a"), snapshot=SNAPSHOTS, tails=[[0]]),
    "no snapshot": DiskRecord(0, digest("a"), tails=[[0]]),
    "no tail": DiskRecord(0, digest("a"), snapshot=0),
    "two tails": DiskRecord(0, digest("a"), snapshot=0, tails=[[0], [0]]),
    "long tail": DiskRecord(0, digest("a"), snapshot=0, tails=[[0, 1, 2, 3]]),
    "page of a tail": DiskRecord(0, digest("a"), snapshot=0, tails=[[-1]]),
}


def test_records_of_memory_that_is_not_there_are_refused(rank: Rank) -> None:
    rank.write(pages(0, 1))
    before = rank.memory.all()
    for name, record in BAD.items():
        for answer in (rank.read([*pages(1, 1), record]), rank.write([*pages(1, 1), record])):
            assert (answer.done, answer.problem) == (0, "io"), name
            assert answer.message, name
    assert rank.memory.all() == before
    assert rank.read([]).problem == ""


def test_a_file_system_without_direct_io_is_used_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return system(path, flags, mode)

    monkeypatch.setattr("numaserve.workers.kv_disk.files.os.open", refuse)
    rank = Rank(tmp_path)
    assert rank.write(pages(0, 3)).done == 3
    assert rank.read(pages(10, 3)).done == 3
    assert rank.memory.of(pages(10, 3)[2]) == rank.memory.of(pages(0, 3)[2])
    rank.close()


def test_files_that_cannot_be_opened_are_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.pages")
    for folder, word in ((tmp_path, "regular"), (tmp_path / "none", "No such file")):
        rank = Rank(folder)
        assert word in rank.ready.problem
        assert rank.read(pages(0, 1)).problem == "io"
        rank.close()


def test_states_without_snapshots_are_told(tmp_path: Path) -> None:
    rank = Rank(tmp_path, snapshots=0)
    assert "snapshots" in rank.ready.problem
    assert list(tmp_path.iterdir()) == []
    rank.close()
