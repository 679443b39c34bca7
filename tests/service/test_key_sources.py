import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from numaserve.server.service.process.key_sources import KeySources, client_key, find_key_file
from numaserve.workers.interface.errors import OperatorError


def key_file(path: Path, mode: int = 0o600) -> Path:
    path.write_text("secret\n")
    path.chmod(mode)
    return path


def test_a_private_file_is_taken(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys")
    assert find_key_file(path) == path


def test_a_file_that_everyone_can_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys", 0o644)
    with pytest.raises(OperatorError, match=f"chmod 600 {path}"):
        find_key_file(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="No such file"):
        find_key_file(tmp_path / "keys")


def test_a_bare_name_is_a_credential_of_the_service_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    path = key_file(tmp_path / "api-keys")
    assert find_key_file(Path("api-keys")) == path


def test_a_path_is_a_path_under_the_service_manager_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    path = key_file(tmp_path / "keys")
    assert find_key_file(path) == path


def test_a_client_sends_the_first_key_of_its_file(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys")
    path.write_text("# mine\n\nfirst\nsecond\n")
    assert client_key(path) == "first"
    assert client_key(None) is None


def test_keys_of_the_file_and_of_the_environment_count_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMASERVE_API_KEY", "from-environment")
    path = key_file(tmp_path / "keys")
    sources = KeySources(path)
    assert "NUMASERVE_API_KEY" not in os.environ
    path.write_text("changed\n")
    for key, before, after in (("secret", True, False), ("changed", False, True), ("from-environment", True, True)):
        assert accepts(sources, key) is before
        sources.reload()
        assert accepts(sources, key) is after
        path.write_text("secret\n")
        sources.reload()
        path.write_text("changed\n")


def test_a_reload_tells_which_cache_groups_there_are_and_a_file_that_cannot_be_read_nothing(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys")
    path.write_text("one cache-group=team\ntwo cache-group=other\n")
    sources, told = KeySources(path), []
    sources.on_reload = told.append
    path.write_text("one cache-group=team\n")
    sources.reload()
    path.write_text("")
    with pytest.raises(OperatorError):
        sources.reload()
    assert told == [{"group team"}]


def test_a_file_that_has_become_unusable_leaves_the_keys_as_they_were(tmp_path: Path) -> None:
    path = key_file(tmp_path / "keys")
    sources = KeySources(path)
    for spoil in (lambda: path.write_text(""), lambda: path.chmod(0o644), path.unlink):
        spoil()
        with pytest.raises(OperatorError):
            sources.reload()
        assert accepts(sources, "secret")


def test_without_file_and_environment_no_key_is_asked_for() -> None:
    sources = KeySources(None)
    sources.reload()
    assert sources.keys is None


@pytest.mark.parametrize(
    ("key", "message"), [("", "empty"), ("two words", "is not allowed in an HTTP header"), ("schlüssel", "ASCII")]
)
def test_a_variable_without_a_usable_key_is_refused_and_gone(
    monkeypatch: pytest.MonkeyPatch, key: str, message: str
) -> None:
    monkeypatch.setenv("NUMASERVE_API_KEY", key)
    with pytest.raises(OperatorError, match=message) as caught:
        KeySources(None)
    assert not key or key not in str(caught.value)
    assert "NUMASERVE_API_KEY" not in os.environ


def test_the_block_that_the_kernel_shows_does_not_have_the_key_either() -> None:
    program = """
import pathlib, subprocess
from numaserve.server.service.process.environment_key import take_environment_key
assert take_environment_key() == "hunter2"
print(pathlib.Path("/proc/self/environ").read_text())
print(subprocess.run(["env"], capture_output=True, text=True, check=True).stdout)
"""
    environment = os.environ | {"BEFORE": "1", "NUMASERVE_API_KEY": "hunter2", "X_NUMASERVE_API_KEY": "other"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert "hunter2" not in done.stdout
    assert done.stdout.count("BEFORE=1") == done.stdout.count("X_NUMASERVE_API_KEY=other") == 2


@pytest.mark.parametrize(
    ("lines", "one_group", "level", "logged"),
    [
        (
            "a\nb\nc cache-group=team\nd cache-group=team\n",
            False,
            "INFO",
            r"no other key: 2; .* cache-group=: 2 \(team\)",
        ),
        ("a\n", False, "INFO", r"no other key: 1; .* cache-group=: 0 \(no group\)"),
        ("a\nb cache-group=team\n", True, "INFO", r"no other key: 1; .* cache-group=: 1 \(team\)"),
        (
            "a\nb\nc cache-group=team\n",
            True,
            "WARNING",
            r"without cache-group= \(2 of 3\) share .* do not include prefixes of keys with cache-group=",
        ),
        (
            "a cache-group=x\nb cache-group=y\n",
            True,
            "WARNING",
            "report no prefixes: they cover only API keys without cache-group=",
        ),
    ],
)
def test_the_log_says_at_the_start_and_when_keys_are_read_again_which_of_them_share_prefixes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lines: str, one_group: bool, level: str, logged: str
) -> None:
    path = key_file(tmp_path / "keys")
    path.write_text(lines)
    sources = KeySources(path, one_group=one_group)
    for log in (sources.log_sharing, sources.reload):
        caplog.clear()
        with caplog.at_level("INFO"):
            log()
        [record] = caplog.records
        assert record.levelname == level
        assert re.search(logged, record.message)


def test_behind_a_gateway_the_log_says_what_events_mean_for_its_keys(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        KeySources(None, passed=True).log_sharing()
        KeySources(None).log_sharing()
        KeySources(None, one_group=True).log_sharing()
        assert not caplog.records
        KeySources(None, passed=True, one_group=True).log_sharing()
    assert "API keys without cache-group= share cached prefixes" in caplog.text


def accepts(sources: KeySources, key: str) -> bool:
    assert sources.keys is not None
    return sources.keys.accept([(b"authorization", f"Bearer {key}".encode())])
