"""The commands that ask a server, before one whose certificate is of an authority of its own."""

import io
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from numaserve.server.cli.main import main

from tests.support.certificates import Files, make_certificate
from tests.support.stand_in import StandIn

COMMANDS = {
    "top": ("top", "{url}", "--once", "--seconds", "0.05"),
    "chat": ("chat", "{url}"),
    "profile": ("profile", "{url}", "--seconds", "0.05"),
    "bench serve": ("bench", "serve", "--base-url", "{url}", "--num-prompts", "1", "--random-output-len", "4"),
    "bench compare": (
        "bench",
        "compare",
        "{url}",
        "{url}",
        "--flush-cache",
        "--num-prompts",
        "1",
        "--pause",
        "0",
        "--rounds",
        "1",
    ),
}
# What the stand-in, which has no workers and counts no tokens, is asked and answers when it is believed.
ANSWERED = {"profile": "no step ran during the measurement"}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_certificate(tmp_path / "certificates")


@pytest.fixture
def server(files: Files) -> Iterator[StandIn]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.certfile, files.keyfile)
    with StandIn(tls=tls) as server:
        yield server


def run(capsys: pytest.CaptureFixture[str], command: str, url: str, *options: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        main([*(word.format(url=url) for word in COMMANDS[command]), *options])
    return caught.value.code, *capsys.readouterr()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_of_an_own_authority_is_believed_by_its_file_alone(
    command: str, server: StandIn, files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Is it so?\n"))
    status, _, err = run(capsys, command, server.url)
    assert status == 2
    assert err.count("\n") == 1 and "certificate verify failed" in err
    assert err.endswith(". Name a file with the certificate of the server's authority with --ca-file\n")
    status, _, err = run(capsys, command, server.url, "--ca-file", str(files.trust))
    assert "certificate" not in err
    assert (status, err) == (0, "") if command not in ANSWERED else ANSWERED[command] in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_without_an_authority_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    wrong = tmp_path / "notes.txt"
    wrong.write_text("no certificate")
    for url, file, reason in (
        ("https://127.0.0.1:1", wrong, "the file contains no certificate in PEM format"),
        ("https://127.0.0.1:1", tmp_path / "absent", "No such file or directory"),
        ("http://127.0.0.1:1", wrong, "--ca-file needs an https URL"),
    ):
        status, _, err = run(capsys, command, url, "--ca-file", str(file))
        assert status == 2
        assert err.count("\n") == 1 and reason in err


def test_a_model_needs_no_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "chat", "demo", "--ca-file", str(tmp_path / "any"))
    assert status == 2
    assert "--ca-file needs an https URL" in err
