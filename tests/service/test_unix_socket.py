import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.connection.unix_socket import bind_unix_listener
from numaserve.workers.interface.errors import OperatorError


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ns") as short:  # tmp_path may be too long for a socket
        yield Path(short) / "s"


def dead_socket(path: Path) -> None:
    """What a server that was killed leaves."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def test_the_socket_is_for_owner_and_group_and_gone_afterwards(path: Path) -> None:
    before = os.umask(0)
    try:
        with bind_unix_listener(path) as listener:
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            assert listener.is_local
            assert not listener.is_loopback
            assert (listener.place, listener.url) == (str(path), "http://localhost")
            assert listener.curl == ("--unix-socket", str(path))
            assert connects(path)
        assert not path.exists()
        assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_the_socket_of_a_dead_server_is_replaced(path: Path) -> None:
    dead_socket(path)
    with bind_unix_listener(path):
        assert connects(path)


def test_the_socket_of_a_live_server_is_left_alone(path: Path) -> None:
    with bind_unix_listener(path):
        with pytest.raises(OperatorError, match=f"another server is listening on {path}"):
            bind_unix_listener(path)
        assert connects(path)


def test_a_live_server_whose_backlog_is_full_is_alive(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            with pytest.raises(OperatorError, match="another server"):
                bind_unix_listener(path)


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_refused_and_left_alone(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    else:
        dead_socket(path.with_name("target"))
        path.symlink_to("target")
    with pytest.raises(OperatorError, match="is not a socket"):
        bind_unix_listener(path)
    assert path.exists()


def test_a_path_that_cannot_be_used_is_the_operator_s_error(path: Path) -> None:
    for wrong in (path / "none" / "s", path.with_name("x" * 200)):
        with pytest.raises(OperatorError, match="choose another --uds"):
            bind_unix_listener(wrong)


def test_a_socket_that_another_server_made_since_stays(path: Path) -> None:
    first = bind_unix_listener(path)
    path.unlink()
    with bind_unix_listener(path):
        first.close()
        first.close()
        assert connects(path)


def test_a_stranger_s_lock_on_the_folder_does_not_keep_the_server_from_starting(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with bind_unix_listener(path):
            assert connects(path)
        assert not path.exists()
    finally:
        os.close(folder)
