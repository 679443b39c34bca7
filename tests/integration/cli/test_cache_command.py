from pathlib import Path

import pytest
from numaserve.kernels import PackedMatrix
from numaserve.server.cli.main import main
from numaserve.server.kv_disk.cells import Header
from numaserve.server.kv_disk.folder import KvDiskFolder
from numaserve.server.kv_disk.index import Index
from numaserve.server.scheduler.disk.changes import Added
from numaserve.server.scheduler.disk.directory import Entry
from numaserve.workers.kv_disk.records import record_bytes, seal
from numaserve.workers.weights.cache.folder import CacheFolder, CacheKey
from numaserve.workers.weights.cache.transfer import save

from tests.support.damage import write_at

GROUP = "a" * 32


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "numaserve" / "packed"


def cache(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["cache", *command])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_what_is_kept_is_listed_and_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with CacheFolder(home) as folder:
        for rank in range(2):
            key = CacheKey(GROUP, rank, 2)
            save([PackedMatrix(512, 2048)], folder, key, model="/models/[red]some", group_bytes=0, limit=1 << 30)
    (home / f"{GROUP}.0of1.part").write_bytes(b"")
    (home / f"{GROUP}.0of3").write_bytes(b"x")
    (home / f"{GROUP}.0of3").chmod(0o600)
    (home / "notes").write_bytes(b"")
    status, out, _ = cache(capsys, "list")
    assert status == 0
    assert out.count("/models/[red]some") == 2
    assert "1 of 2" in out
    assert "incomplete" in out
    assert "truncated" in out
    assert f"4 MiB in {home}" in out
    assert cache(capsys, "clear")[0] == 0
    assert [file.name for file in home.iterdir()] == ["notes"]


@pytest.mark.parametrize("command", ["list", "clear"])
def test_without_a_folder_there_is_nothing_and_none_is_made(
    command: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = cache(capsys, command)
    assert (status, err) == (0, "")
    assert not home.exists()


def write_prefixes(folder: Path) -> None:
    """Write two pages of two ranks, as a server does."""
    kv, size = KvDiskFolder(folder), record_bytes(100)
    index = Index.create(kv.fd, Header({}, "/models/[red]some", [size, size], [0, 0], b""), {"pages": 8, "anchors": 0})
    entries = [Entry(slot, bytes([slot]) * 32, b"", 1, f"key {slot}" if slot else "", 1_700_000_000) for slot in (0, 3)]
    index.append([Added("pages", entry) for entry in entries])
    for rank in range(2):
        with (folder / f"rank-{rank}.pages").open("wb") as file:
            for entry in entries:
                record = memoryview(bytearray(size))
                seal(record, entry.digest, 90 + entry.slot)
                file.seek(entry.slot * size)
                file.write(record)
    index.close()
    kv.close()


def test_cached_prefixes_are_listed_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kv"
    status, _, err = cache(capsys, "kv-disk", str(folder))
    assert status == 2
    assert "no cached prefixes can be read (No such file or directory)" in err
    assert not folder.exists()
    write_prefixes(folder)
    status, out, _ = cache(capsys, "kv-disk", str(folder), "--verify")
    assert status == 0
    assert "(common)" in out
    assert "key 3" in out
    assert f" in {folder}, of /models/[red]some on 2 ranks" in out
    assert "4 records verified, 0 damaged" in out
    write_at(folder / "rank-1.pages", 3 * record_bytes(100) + 70, b"x")
    status, out, _ = cache(capsys, "kv-disk", str(folder), "--verify")
    assert status == 1
    assert "rank-1.pages: record 3 is not as it was written (checksum)" in out
    assert "4 records verified, 1 damaged" in out
    server = KvDiskFolder(folder)
    assert cache(capsys, "kv-disk", str(folder))[0] == 0
    status, _, err = cache(capsys, "kv-disk", str(folder), "--verify")
    assert (status, "another server" in err) == (2, True)
    server.close()


def test_a_folder_that_others_may_enter_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir(parents=True)
    home.chmod(0o755)
    status, _, err = cache(capsys, "clear")
    assert status == 2
    assert "inaccessible to all others" in err
