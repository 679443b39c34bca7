import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.dispatch.directory import MAX_SOCKET_PATH, SocketDirectory
from numaserve.workers.interface.errors import OperatorError


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ns", dir="/tmp") as short:  # tmp_path may be too long for a socket
        monkeypatch.setenv("RUNTIME_DIRECTORY", short)
        yield Path(short)


def left_behind(parent: Path) -> Path:
    """What a process leaves that is killed."""
    program = """
import os, pathlib, signal, socket
from numaserve.server.dispatch.directory import SocketDirectory
made = SocketDirectory(1)
socket.socket(socket.AF_UNIX).bind(str(made.path / "rank0.sock"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    (left,) = parent.iterdir()
    assert (left / "rank0.sock").is_socket()
    return left


def is_removed(path: Path) -> bool:
    """Whether the next one removes it."""
    SocketDirectory(1).remove()
    return not path.exists()


def test_the_directory_is_closed_to_others_and_gone_afterwards(parent: Path) -> None:
    made = SocketDirectory(2)
    assert list(parent.iterdir()) == [made.path]
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
    (made.path / "rank0.sock").touch()
    made.remove()
    assert list(parent.iterdir()) == []


def test_what_a_killed_process_left_is_removed(parent: Path) -> None:
    assert is_removed(left_behind(parent))


def test_what_a_live_process_uses_stays(parent: Path) -> None:
    alive = SocketDirectory(1)
    assert not is_removed(alive.path)
    alive.remove()


def test_a_link_is_not_followed(parent: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stranger:
        (parent / "short").symlink_to(target)
        stranger.bind(str(parent / "short" / "rank0.sock"))
    link = parent / "numaserve-sockets-link"
    link.symlink_to(target)
    assert not is_removed(link)
    assert (target / "rank0.sock").is_socket()


def test_what_is_not_of_our_making_stays(parent: Path) -> None:
    left = left_behind(parent)
    (left / "precious").write_text("x")
    open_to_others = parent / "numaserve-sockets-open"
    open_to_others.mkdir()
    open_to_others.chmod(0o755)
    other_name = parent / "numaserve-other"
    other_name.mkdir(mode=0o700)
    file = parent / "numaserve-sockets-file"
    file.touch()
    assert not any(map(is_removed, (left, open_to_others, other_name, file)))
    assert (left / "precious").exists()


def test_a_directory_whose_paths_are_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * MAX_SOCKET_PATH)
    long.mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(long))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    made = SocketDirectory(64)
    assert long not in made.path.parents
    assert list(long.iterdir()) == []
    made.remove()


def test_no_place_for_sockets_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "missing")
    monkeypatch.setenv("RUNTIME_DIRECTORY", missing)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    monkeypatch.setattr("tempfile.gettempdir", lambda: missing)
    with pytest.raises(OperatorError, match="RUNTIME_DIRECTORY"):
        SocketDirectory(1)
