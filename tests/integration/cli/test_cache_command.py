from pathlib import Path

import pytest
from numaserve.kernels import PackedMatrix
from numaserve.server.cli.main import main
from numaserve.workers.weights.cache.folder import CacheFolder, CacheKey
from numaserve.workers.weights.cache.transfer import save

GROUP = "a" * 32


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "numaserve" / "packed"


def cache(capsys: pytest.CaptureFixture[str], command: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["cache", command])
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


def test_a_folder_that_others_may_enter_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir(parents=True)
    home.chmod(0o755)
    status, _, err = cache(capsys, "clear")
    assert status == 2
    assert "inaccessible to all others" in err
