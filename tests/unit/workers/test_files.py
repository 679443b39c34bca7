import os
from pathlib import Path

import pytest
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import open_file, read_file, read_json, read_text

from tests.support import special_files

SMALL = 1 << 20
REASONS = {
    "a device without end": "not a regular file",
    "a FIFO": "not a regular file",
    "a folder": "Is a directory",
    "a socket": "not a regular file",
    "a link to itself": "Too many levels of symbolic links",
    "a link that leads nowhere": "No such file",
    "a terabyte of nothing": "larger than the limit of 1 MiB",
}


@pytest.mark.parametrize("kind", special_files.KINDS)
def test_only_a_regular_file_of_bounded_size_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    special_files.replace(path, kind)
    with pytest.raises(OperatorError, match=REASONS[kind]) as caught:
        read_file(path, SMALL)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(mode=0)
    with pytest.raises(OperatorError, match="Permission denied"):
        read_file(path, SMALL)


def test_a_link_to_a_file_is_read_as_that_file(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"content")
    (tmp_path / "link").symlink_to("blob")
    (tmp_path / "model.json").symlink_to("link")
    assert read_file(tmp_path / "model.json", SMALL) == b"content"


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * SMALL)
    assert len(read_file(path, SMALL)) == SMALL
    with pytest.raises(OperatorError, match="larger than"):
        read_file(path, SMALL - 1)


def test_a_file_that_says_that_it_is_empty_is_read_up_to_the_limit() -> None:
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    assert read_file(path, SMALL)
    with pytest.raises(OperatorError, match="larger than"):
        read_file(path, 10)


def test_a_file_stays_open_as_long_as_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    with open_file(path) as file:
        path.unlink()
        assert file.read() == b"content"
    assert file.closed


def test_what_is_no_utf_8_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xff")
    with pytest.raises(OperatorError, match="not UTF-8"):
        read_text(path, SMALL)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"a": ' + b"1" * 5000 + b"}"])
def test_what_is_no_json_object_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(OperatorError, match="JSON"):
        read_json(path)


@pytest.mark.parametrize("content", [b'{"a": 1, "b": 2, "a": 1}', b'{"x": [{"a": 1, "a": {}}]}'])
def test_a_name_that_is_there_twice_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(OperatorError, match=r"not valid JSON \(an object has the name 'a' twice\)"):
        read_json(path)
