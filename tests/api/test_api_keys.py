from pathlib import Path

import pytest
from numaserve.server.http.auth.key_file import ApiKey, read_keys
from numaserve.server.http.auth.keys import ApiKeys
from numaserve.workers.interface.errors import OperatorError


def test_a_file_has_a_key_a_line_with_comments_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\n\n  one  \ntwo\n")
    keys = ApiKeys(read_keys(path))
    assert keys.accept([(b"authorization", b"Bearer one")])
    assert keys.accept([(b"authorization", b"Bearer two")])
    assert not keys.accept([(b"authorization", b"Bearer # ours")])
    assert not keys.accept([(b"authorization", b"Bearer ")])


@pytest.mark.parametrize("content", [b"", b"# only a comment\n", b"\xff\xfe", b"two words\n", "schlüssel\n".encode()])
def test_a_file_without_a_usable_key_is_the_operator_s_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(OperatorError, match=str(path)):
        ApiKeys(read_keys(path))


def test_a_missing_file_is_the_operator_s_error(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="none"):
        read_keys(tmp_path / "none")


def test_no_keys_at_all_is_never_taken_for_open() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ApiKeys([])


def test_replaced_keys_count_at_once_and_the_old_ones_no_more() -> None:
    keys = ApiKeys(map(ApiKey, ["old", "kept"]))
    keys.replace(map(ApiKey, ["kept", "new"]))
    assert keys.accept([(b"authorization", b"Bearer new")])
    assert keys.accept([(b"authorization", b"Bearer kept")])
    assert not keys.accept([(b"authorization", b"Bearer old")])
    with pytest.raises(ValueError, match="at least one"):
        keys.replace([])
    assert keys.accept([(b"authorization", b"Bearer new")])


def test_nothing_is_kept_of_a_key_that_has_gone() -> None:
    keys, old = ApiKeys([ApiKey("old"), ApiKey("kept")]), [(b"x-api-key", b"old")]
    used = keys.account(old).quota
    keys.replace([ApiKey("kept")])
    with pytest.raises(KeyError):
        keys.account(old)
    keys.replace([ApiKey("old")])
    assert keys.account(old).quota is not used


def test_keys_do_not_show_in_their_representation() -> None:
    key = ApiKey("hunter2")
    assert "hunter2" not in repr(key) + repr(ApiKeys([key])) + str(vars(ApiKeys([key])))
