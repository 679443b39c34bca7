"""The store over restarts, changes of all that counts, and a folder that fails."""

import asyncio
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from numaserve.server.kv_disk.store import Store, StoreOptions
from numaserve.server.scheduler.disk.changes import Added, Change, Dropped, Used
from numaserve.server.scheduler.disk.directory import DiskDirectory, Entry
from numaserve.server.scheduler.disk.shelves import Directories, RecordSizes

from tests.unit.kv_disk.index_samples import digest_of, entry_of

RECORD, ANCHOR = 4096, 8192
SIZES = RecordSizes([RECORD, RECORD], [ANCHOR, 0])
NOW = 1_700_000_000


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreOptions:
    monkeypatch.setattr("numaserve.server.kv_disk.contents._SETTLED_NS", -1)
    checkpoint = tmp_path / "model.safetensors"
    checkpoint.write_bytes(b"weights")
    return StoreOptions(tmp_path / "kv", 1 << 20, "model", [checkpoint], {"settings": ("bf16",), "isa": "avx512"})


class Server:
    """A server between its start and its end, which is how most of them end: without a word."""

    def __init__(self, options: StoreOptions) -> None:
        self.store = Store(options)
        self.problems: list[tuple[str, str]] = []
        self.store.on_problem = lambda *problem: self.problems.append(problem)

    async def load(self, sizes: RecordSizes = SIZES) -> Directories:
        self.found = await self.store.load(sizes)
        return self.found

    def write(self, *entries: Entry) -> None:
        """Write records as the ranks do, and note them."""
        for rank in range(2):
            with os.fdopen(os.open(self.path(rank), os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                for entry in entries:
                    os.pwrite(file.fileno(), entry.digest * (RECORD // 32), entry.slot * RECORD)
        self.store.append([Added("pages", entry) for entry in entries])

    def path(self, rank: int) -> Path:
        return self.store.folder / f"rank-{rank}.pages"

    def records(self, rank: int = 0) -> set[int]:
        """The slots that hold anything."""
        data = self.path(rank).read_bytes()
        return {at // RECORD for at in range(0, len(data), RECORD) if any(data[at : at + RECORD])}


def nodes(directory: DiskDirectory) -> set[Entry]:
    return set(directory.entries())


async def eventually(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def test_nodes_survive_a_restart_and_nothing_else_does(options: StoreOptions) -> None:
    server = Server(options)
    found = await server.load()
    assert not len(found.pages) + len(found.anchors)
    assert found.pages.num_slots * 2 * RECORD + found.anchors.num_slots * ANCHOR <= options.limit_bytes
    assert found.anchors.num_slots > 10
    kept = [entry_of(number, at=NOW) for number in range(5)]
    server.write(*kept)
    server.store.append([Added("anchors", entry_of(2, slot=0, at=NOW)), Used("pages", kept[4].digest, NOW + 5)])
    server.path(0).write_bytes(server.path(0).read_bytes() + b"left by a write that was not noted" * 1000)
    (server.store.folder / "rank-7.pages").write_bytes(b"of a rank that is no more")
    (server.store.folder / "rank-1.anchors").write_bytes(b"of a rank without anchors")
    server.store.close()

    again = Server(options)
    found = await again.load()
    # The path of the node that was used last was used no earlier.
    assert nodes(found.pages) == {entry._replace(used_at=NOW + 5) for entry in kept}
    assert nodes(found.anchors) == {entry_of(2, slot=0, at=NOW)}
    assert again.records() == again.records(1) == {0, 1, 2, 3, 4}
    names = {path.name for path in again.store.folder.iterdir()}
    assert names == {"lock", "index", "contents.json", "rank-0.pages", "rank-1.pages"}
    assert {path.stat().st_mode & 0o077 for path in again.store.folder.iterdir()} == {0}
    again.store.close()


async def test_a_server_that_is_killed_leaves_what_was_synced(options: StoreOptions) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:

        async def serve() -> None:
            server = Server(options)
            await server.load()
            server.write(entry_of(0, at=NOW))
            size = (server.store.folder / "index").stat().st_size
            await eventually(lambda: (server.store.folder / "index").stat().st_size > size)
            os.write(writing, b"x")
            await asyncio.sleep(60)

        asyncio.new_event_loop().run_until_complete(serve())
    os.read(reading, 1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    server = Server(options)
    assert nodes((await server.load()).pages) == {entry_of(0, at=NOW)}
    server.store.close()
    os.close(reading)
    os.close(writing)


async def test_a_removed_key_and_what_is_too_old_lose_their_bytes(options: StoreOptions) -> None:
    server = Server(options)
    await server.load()
    groups = ["", "key a", "group b", "key a", ""]
    server.write(*(entry_of(8 * number, number, group, NOW) for number, group in enumerate(groups)))
    server.write(entry_of(0, 9, at=1_000)._replace(digest=digest_of("old")))
    server.store.close()
    server = Server(replace(options, groups=lambda: {"", "group b"}, max_age_s=10**9))
    found = await server.load()
    assert {(entry.slot, entry.group) for entry in nodes(found.pages)} == {(0, ""), (2, "group b"), (4, "")}
    assert server.records() == server.records(1) == {0, 2, 4}
    index = (server.store.folder / "index").read_bytes()
    assert b"key a" not in index
    assert digest_of(8) not in index
    assert digest_of("old") not in index
    server.store.close()


async def test_a_key_that_is_removed_while_the_server_runs_loses_its_bytes_after_its_nodes(
    options: StoreOptions,
) -> None:
    server = Server(options)
    await server.load()
    server.write(*(entry_of(number, number, "key a" if number % 2 else "", NOW) for number in range(5)))
    erased: list[set[int]] = []
    server.store.append([Dropped("pages", digest_of(number)) for number in (1, 3)])
    server.store.erase({"pages": [1, 3, 200]}, lambda: erased.append(server.records()))
    await eventually(lambda: erased)
    assert erased == [{0, 2, 4}]
    assert server.records(1) == {0, 2, 4}
    server.store.close()
    again = Server(options)
    assert {entry.slot for entry in nodes((await again.load()).pages)} == {0, 2, 4}
    assert not (server.problems or again.problems)
    again.store.close()


@pytest.mark.parametrize("changed", ["content", "fact", "sizes", "index"])
async def test_with_anything_changed_the_folder_is_empty_and_says_why(
    options: StoreOptions, changed: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(options)
    await server.load()
    server.write(entry_of(0, at=NOW))
    server.store.close()
    caplog.set_level("INFO")
    sizes, expected = SIZES, ""
    if changed == "content":
        options.files[0].write_bytes(b"Weights")
        expected = "has changed (checkpoint)"
    elif changed == "fact":
        options = replace(options, facts={"settings": ("bf16",), "isa": "portable"})
        expected = "has changed (isa)"
    elif changed == "sizes":
        sizes = RecordSizes([RECORD, 2 * RECORD], SIZES.anchors)
        expected = "has changed (record sizes)"
    else:
        path = options.folder / "index"
        path.write_bytes(b"?" + path.read_bytes()[1:])
        expected = "the header of the index is damaged"
    server = Server(options)
    assert not nodes((await server.load(sizes)).pages)
    assert expected in caplog.text
    assert server.records() == set()
    server.store.close()


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, "full"), (errno.EIO, "io")])
async def test_an_index_that_cannot_be_written_is_reported_once(
    options: StoreOptions, code: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(options)
    await server.load()
    server.write(entry_of(0, at=NOW))

    def fail(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        server.write(entry_of(1, at=NOW))
        await eventually(lambda: server.problems)
    server.write(entry_of(2, at=NOW))
    await asyncio.sleep(0.05)
    assert server.problems == [(kind, os.strerror(code))]
    server.store.close()


async def test_an_index_that_was_removed_is_reported(options: StoreOptions) -> None:
    server = Server(options)
    await server.load()
    for path in options.folder.iterdir():
        path.unlink()
    options.folder.rmdir()
    changes: list[Change] = [Added("pages", entry_of(0))]
    server.store.append(changes)
    await eventually(lambda: server.problems)
    assert server.problems == [("gone", "the index was removed")]
    server.store.close()


async def test_a_disk_that_hangs_bounds_what_waits_and_keeps_nobody_from_ending(
    options: StoreOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(options)
    await server.load()
    monkeypatch.setattr("numaserve.server.kv_disk.writer._MOST_WAITING", 100)
    monkeypatch.setattr("numaserve.server.kv_disk.store._CLOSE_S", 0.05)
    hanging, going_on = os.pipe()
    monkeypatch.setattr(os, "fdatasync", lambda fd: os.read(hanging, 1))
    for number in range(300):
        server.store.append([Added("pages", entry_of(number))])
    await eventually(lambda: server.problems)
    assert [kind for kind, _ in server.problems] == ["slow"]
    server.store.close()
    os.write(going_on, b"xx")
    os.close(going_on)
