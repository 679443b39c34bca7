"""The folder: who may use it, what is erased from it, and the digest of a checkpoint that it remembers."""

import errno
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from numaserve.server.kv_disk import contents, erasing
from numaserve.server.kv_disk.contents import contents_digest
from numaserve.server.kv_disk.erasing import keep_records
from numaserve.server.kv_disk.folder import KvDiskFolder, file_system_of
from numaserve.workers.interface.errors import OperatorError

RECORD = 4096


def test_a_folder_is_made_for_its_user_alone_and_locked(tmp_path: Path) -> None:
    path = tmp_path / "a" / "kv"
    folder = KvDiskFolder(path)
    assert path.stat().st_mode & 0o777 == 0o700
    assert (path / "lock").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OperatorError, match=rf"another server \(process {os.getpid()}\) uses this folder"):
        KvDiskFolder(path)
    folder.close()
    KvDiskFolder(path).close()


def hold(path: Path, held: "multiprocessing.synchronize.Event") -> None:  # type: ignore[name-defined]
    KvDiskFolder(path)
    held.set()
    time.sleep(60)


def test_a_server_that_was_killed_leaves_the_folder_unlocked(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held = context.Event()
    process = context.Process(target=hold, args=(tmp_path, held))
    process.start()
    assert held.wait(30)
    with pytest.raises(OperatorError, match="another server"):
        KvDiskFolder(tmp_path)
    process.kill()
    process.join()
    KvDiskFolder(tmp_path).close()


@pytest.mark.parametrize(
    ("mode", "parent", "expected"),
    [
        (0o720, 0o700, "other users can write to the folder .mode 720.*chmod 700"),
        (0o702, 0o700, "other users can write to the folder .mode 702.*chmod 700"),
        (0o700, 0o707, "every user can rename the folder.*chmod o-w"),
    ],
)
def test_a_folder_that_others_can_change_is_refused(tmp_path: Path, mode: int, parent: int, expected: str) -> None:
    path = tmp_path / "p" / "kv"
    path.mkdir(parents=True)
    path.chmod(mode)
    path.parent.chmod(parent)
    with pytest.raises(OperatorError, match=expected):
        KvDiskFolder(path)


def test_another_user_s_folder_and_what_is_no_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match="cannot be used"):
        KvDiskFolder(tmp_path / "file")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(OperatorError, match=r"belongs to user \d+, and must belong to the server's user 12345"):
        KvDiskFolder(tmp_path)


def test_own_files_count_as_free_space(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = KvDiskFolder(tmp_path)
    (tmp_path / "rank-0.pages").write_bytes(bytes(1 << 22))
    (tmp_path / "other").write_bytes(bytes(1 << 22))
    free = os.statvfs(tmp_path)
    limit = free.f_bavail * free.f_frsize * 2
    assert folder.usable_bytes(1 << 20) == 1 << 20
    assert not caplog.records
    usable = folder.usable_bytes(limit)
    assert abs(usable - (limit // 2 - (1 << 30) + (1 << 22))) < 1 << 30  # others use the disk meanwhile
    assert "less than kv_disk_gib" in caplog.text
    folder.close()


def test_the_file_system_of_a_folder_is_known() -> None:
    assert file_system_of(os.stat("/dev/shm").st_dev) == "tmpfs"  # noqa: PTH116 a device is no path
    assert file_system_of(os.makedev(4000, 1)) is None


@pytest.mark.parametrize("punches", [True, False])
def test_everything_but_the_kept_records_is_erased(
    tmp_path: Path, punches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not punches:
        monkeypatch.setattr(erasing, "_punch", lambda *_: errno.EOPNOTSUPP)
    path = tmp_path / "rank-0.pages"
    path.write_bytes(b"x" * (20 * RECORD + 100))
    for kept, num_slots in (({0, 3, 4, 9, 19}, 20), ({3, 9}, 12), (set[int](), 12)):
        with path.open("r+b") as file:
            keep_records(file.fileno(), RECORD, num_slots, kept)
        data = path.read_bytes()
        assert len(data) == num_slots * RECORD
        for slot in range(num_slots):
            expected = b"x" if slot in kept else b"\0"
            assert data[slot * RECORD : (slot + 1) * RECORD] == expected * RECORD
    if punches:
        assert path.stat().st_blocks == 0


def test_content_counts_and_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    hashed: list[str] = []
    real = contents._hash

    def counted(path: Path, *others: object) -> str:
        hashed.append(path.name)
        return real(path, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(contents, "_hash", counted)
    monkeypatch.setattr(contents, "_SETTLED_NS", -1)
    files = [tmp_path / "model-2.safetensors", tmp_path / "config.json"]
    for path in files:
        path.write_bytes(path.name.encode())
    first = contents_digest(files, folder)
    assert contents_digest(files[::-1], folder) == first
    assert hashed == ["config.json", "model-2.safetensors"]
    # The same content in another folder.
    copies = [tmp_path / "copy" / path.name for path in files]
    copies[0].parent.mkdir()
    for path, copy in zip(files, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    assert contents_digest(copies, folder) == first
    # A change in place, with the time of the last modification restored.
    before = files[0].stat()
    files[0].write_bytes(b"other 2.safetensors")
    os.utime(files[0], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert contents_digest(files, folder) != first
    # A file that changed a moment ago may change again at the same time: it is read each time.
    monkeypatch.setattr(contents, "_SETTLED_NS", 1 << 60)
    files[1].write_bytes(b"{}")
    hashed.clear()
    assert contents_digest(files, folder) == contents_digest(files, folder)
    assert hashed == ["config.json", "config.json"]
    for damaged in (b"[", b'{"files": [[["/a", 1, 2, 3, 4], "?"]]}'):
        (tmp_path / "contents.json").write_bytes(damaged)
        assert contents_digest(copies, folder) == first
    os.close(folder)
