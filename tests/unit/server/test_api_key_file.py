from __future__ import annotations

from pathlib import Path

import pytest
from numaserve.server.cli.api_key_file import client_key, find_api_key_file
from numaserve.workers.errors import OperatorError


def key_file(path: Path, mode: int = 0o600) -> Path:
    path.write_text("secret\n")
    path.chmod(mode)
    return path


def test_a_private_file_is_taken(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys")
    assert find_api_key_file(path) == path


def test_a_file_that_everyone_can_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", 0o644)
    with pytest.raises(OperatorError, match=f"chmod 600 {path}"):
        find_api_key_file(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="No such file"):
        find_api_key_file(tmp_path / "keys")


def test_a_bare_name_is_a_credential_of_the_service_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    path = key_file(tmp_path / "api-keys")
    assert find_api_key_file(Path("api-keys")) == path


def test_a_path_is_a_path_under_the_service_manager_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    path = key_file(tmp_path / "keys")
    assert find_api_key_file(path) == path


def test_a_client_sends_the_first_key_of_its_file(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys")
    path.write_text("# mine\n\nfirst\nsecond\n")
    assert client_key(path) == "first"
    assert client_key(None) is None
