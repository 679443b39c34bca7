import contextlib
import errno
import itertools
import multiprocessing
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from cache_weights import GIB, contents, key, random_matrices, read, write
from numaserve.kernels import Team
from numaserve.workers.weights.cache import folder, transfer
from numaserve.workers.weights.cache.errors import CacheError
from numaserve.workers.weights.cache.folder import CacheFolder

PATIENCE_S = 60


@pytest.fixture(scope="module")
def team() -> Team:
    return Team([-1, -1])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "packed"


def names(path: Path) -> set[str]:
    return {each.name for each in path.iterdir()}


def used(path: Path, group: str, seconds_ago: float) -> None:
    """Say when a group was used last."""
    for file in path.glob(f"{group}*"):
        os.utime(file, (time.time() - seconds_ago,) * 2)


def test_bytes_that_are_written_are_read_again(path: Path, team: Team) -> None:
    matrices = random_matrices()
    assert read(path, key("a"), team) is None
    nbytes = write(path, key("a"), matrices)
    assert (path / key("a").file_name).stat().st_size == nbytes
    assert read(path, key("a"), team) == contents(matrices)
    assert read(path, key("b"), team) is None


def test_folder_and_files_are_closed_to_others_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        write(path, key("a"), random_matrices())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / key("a").file_name).stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_may_enter_is_not_used(path: Path, mode: int) -> None:
    path.mkdir(parents=True)
    path.chmod(mode)
    with pytest.raises(CacheError, match="inaccessible to all others"):
        CacheFolder(path)


def test_a_file_that_others_may_read_or_write_is_not_used(path: Path, team: Team) -> None:
    write(path, key("a"), random_matrices())
    (path / key("a").file_name).chmod(0o620)
    with pytest.raises(CacheError, match="inaccessible to all others"):
        read(path, key("a"), team)


@pytest.mark.parametrize("checks_before", [0, 1], ids=["folder", "file"])
def test_what_belongs_to_another_user_is_not_used(
    checks_before: int, path: Path, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, key("a"), random_matrices())
    own = os.geteuid()
    users = itertools.chain([own] * checks_before, itertools.repeat(own + 1))
    monkeypatch.setattr(os, "geteuid", lambda: next(users))
    with pytest.raises(CacheError, match="owned by the server's user"):
        read(path, key("a"), team)


def test_links_are_not_followed(path: Path, team: Team, tmp_path: Path) -> None:
    write(path, key("a"), random_matrices())
    target = tmp_path / "elsewhere"
    target.write_bytes(b"precious")
    target.chmod(0o600)
    (path / key("b").file_name).symlink_to(path / key("a").file_name)
    (path / f"{key('c').file_name}.part").symlink_to(target)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(CacheError, match="symbolic link"):
        read(path, key("b"), team)
    with pytest.raises(CacheError, match="symbolic link"):
        write(path, key("c"), random_matrices())
    with pytest.raises(CacheError):
        CacheFolder(tmp_path / "link")
    assert target.read_bytes() == b"precious"


def test_a_pipe_in_the_place_of_a_file_holds_nothing_up(path: Path, team: Team) -> None:
    path.mkdir(parents=True, mode=0o700)
    os.mkfifo(path / key("a").file_name, 0o600)
    with pytest.raises(CacheError, match="is not a file"):
        read(path, key("a"), team)


def test_a_folder_that_cannot_be_made_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CacheError, match="Not a directory"):
        CacheFolder(tmp_path / "file" / "packed")


def test_an_error_in_mid_write_leaves_what_was_there_before(path: Path, team: Team) -> None:
    old = random_matrices(1)
    write(path, key("a"), old)
    calls = iter([None, None])
    with pytest.raises(StopIteration):
        write(path, key("a"), random_matrices(2), between=lambda: next(calls))
    assert names(path) == {key("a").file_name}
    assert read(path, key("a"), team) == contents(old)


def test_a_disk_that_gets_full_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(transfer.os, "pwrite", full)
    with pytest.raises(CacheError, match="No space left"):
        write(path, key("a"), random_matrices())
    assert names(path) == set()


def test_too_little_space_is_found_out_before_anything_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1000, f_frsize=4096))
    with pytest.raises(CacheError, match=r"less than .* is free"):
        write(path, key("a"), random_matrices(), between=pytest.fail)
    assert names(path) == set()


def test_a_short_write_goes_on_where_it_ended(path: Path, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(transfer.os, "pwrite", lambda fd, data, offset: real(fd, data[:1_000_003], offset))
    matrices = random_matrices()
    write(path, key("a"), matrices)
    assert read(path, key("a"), team) == contents(matrices)


def test_the_group_that_was_not_used_for_longest_goes_first(path: Path) -> None:
    nbytes = write(path, key("a"), random_matrices())
    for name in ("b", "c"):
        write(path, key(name), random_matrices())
    for name, age in (("a", 10), ("b", 30), ("c", 20)):
        used(path, name, age)
    write(path, key("d"), random_matrices(), group_bytes=nbytes, limit=3 * nbytes)
    assert names(path) == {key(name).file_name for name in "acd"}
    write(path, key("e"), random_matrices(), group_bytes=2 * nbytes, limit=3 * nbytes)
    assert names(path) == {key(name).file_name for name in "de"}


def test_ranks_of_a_group_make_room_for_all_of_them_and_not_by_removing_each_other(path: Path) -> None:
    nbytes = write(path, key("a"), random_matrices())
    write(path, key("b"), random_matrices())
    used(path, "a", 10)
    for rank in range(2):
        write(path, key("c", rank, 2), random_matrices(), group_bytes=2 * nbytes, limit=3 * nbytes)
    assert names(path) == {key("b").file_name, *(key("c", rank, 2).file_name for rank in range(2))}


def test_ranks_of_a_group_go_together(path: Path) -> None:
    nbytes = write(path, key("a", 0, 2), random_matrices())
    write(path, key("a", 1, 2), random_matrices())
    write(path, key("b"), random_matrices(), group_bytes=nbytes, limit=2 * nbytes)
    assert names(path) == {key("b").file_name}


def test_a_group_that_is_larger_than_the_limit_is_not_written_and_removes_nothing(path: Path) -> None:
    nbytes = write(path, key("a"), random_matrices())
    with pytest.raises(CacheError, match="raise --weights-cache-gib"):
        write(path, key("b"), random_matrices(), group_bytes=nbytes, limit=nbytes - 1, between=pytest.fail)
    assert names(path) == {key("a").file_name}


def test_files_of_others_in_the_folder_are_left_alone(path: Path) -> None:
    path.mkdir(parents=True, mode=0o700)
    (path / "notes.txt").write_bytes(bytes(1000))
    (path / f"{'0' * 32}.0of1.bak").write_bytes(b"x")
    nbytes = write(path, key("a"), random_matrices())
    write(path, key("b"), random_matrices(), group_bytes=nbytes, limit=nbytes)
    assert names(path) == {"notes.txt", f"{'0' * 32}.0of1.bak", key("b").file_name}


def stop_in_the_middle(path: str, arrived: object, how: str) -> None:
    """In a process of its own: begins to write, says so, and waits or dies."""

    def between() -> None:
        arrived.set()  # type: ignore[attr-defined]
        if how == "dies":
            os.kill(os.getpid(), 9)
        time.sleep(PATIENCE_S)

    write(Path(path), key("a"), random_matrices(), between=between)


@contextlib.contextmanager
def writer(path: Path, how: str) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    arrived = context.Event()
    process = context.Process(target=stop_in_the_middle, args=(str(path), arrived, how))
    process.start()
    try:
        assert arrived.wait(PATIENCE_S)
        if how == "dies":
            process.join(PATIENCE_S)
        yield
    finally:
        process.kill()
        process.join()


def test_what_a_killed_writer_left_is_taken_over_by_the_next_one(path: Path, team: Team) -> None:
    with writer(path, "dies"):
        assert names(path) == {f"{key('a').file_name}.part"}
        assert read(path, key("a"), team) is None
    matrices = random_matrices(1)
    write(path, key("a"), matrices)
    assert names(path) == {key("a").file_name}
    assert read(path, key("a"), team) == contents(matrices)


def test_what_a_killed_writer_left_is_removed_by_others(path: Path) -> None:
    with writer(path, "dies"):
        write(path, key("b"), random_matrices())
    assert names(path) == {key("b").file_name}


def test_two_processes_do_not_write_the_same(path: Path, team: Team) -> None:
    with writer(path, "waits"):
        with pytest.raises(CacheError, match="another process is writing this file"):
            write(path, key("a"), random_matrices())
        write(path, key("b"), random_matrices())  # neither is it in the way of others, nor removed by them
        assert names(path) == {f"{key('a').file_name}.part", key("b").file_name}
        assert read(path, key("a"), team) is None


def test_a_writer_whose_file_was_removed_leaves_that_of_the_next_one_alone(path: Path) -> None:
    part = path / f"{key('a').file_name}.part"

    def lose_it() -> None:
        write(path, key("b"), random_matrices(), group_bytes=GIB)
        assert not part.exists()
        part.write_bytes(b"begun")

    with pytest.raises(CacheError, match="another process removed the file"):
        write(path, key("a"), random_matrices(), between=lose_it)
    assert names(path) == {part.name, key("b").file_name}
    assert part.read_bytes() == b"begun"


def test_a_file_that_its_writer_has_not_locked_yet_is_left_to_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = folder._try_lock
    other = threading.Thread(target=write, args=(path, key("a", 1, 2), random_matrices()))

    def lock_late(fd: int) -> bool:
        if other.ident is None:
            other.start()
            other.join(0.3)  # it waits for this one, or is through
        return lock(fd)

    monkeypatch.setattr(folder, "_try_lock", lock_late)
    write(path, key("a", 0, 2), random_matrices())
    other.join()
    assert names(path) == {key("a", rank, 2).file_name for rank in range(2)}


def write_many(path: str, count: int) -> None:
    for seed in range(count):
        with contextlib.suppress(CacheError):
            write(Path(path), key("ab"[seed % 2]), random_matrices(), group_bytes=6 << 20, limit=10 << 20)


def test_processes_that_write_and_remove_all_the_time_never_leave_a_damaged_file(path: Path, team: Team) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_many, args=(str(path), 20)) for _ in range(3)]
    for process in processes:
        process.start()
    whole, seen = contents(random_matrices()), 0
    while any(process.is_alive() for process in processes):
        for name in "ab":
            found = read(path, key(name), team)
            assert found in (None, whole)
            seen += found is not None
    for process in processes:
        process.join()
    assert seen > 0
    assert [process.exitcode for process in processes] == [0] * 3
    assert names(path) <= {key("a").file_name, key("b").file_name}
