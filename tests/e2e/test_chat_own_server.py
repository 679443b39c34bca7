"""`numaserve chat MODEL`: a server of its own, which ends with it, however that ends."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import encoders
from tests.support.living import await_ends
from tests.support.tokenizer_builders import wordpiece_backend

PATIENCE_S = 60.0
OPTIONS = ("--tp", "1", "--threads-per-worker", "1", "--kv-cache-gib", "0.05", "--temperature", "0")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one: the paths of sockets have a limit."""
    with tempfile.TemporaryDirectory(prefix="ns-") as folder:
        yield Path(folder)


def test_an_encoder_is_refused_before_it_is_loaded(folder: Path) -> None:
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(encoders.config_values("bert")))
    wordpiece_backend().save(str(model / "tokenizer.json"))
    command = [sys.executable, "-m", "numaserve.server.cli.main", "chat", str(model), *OPTIONS]
    ended = subprocess.run(
        command, input="Hi\n", capture_output=True, text=True, env=os.environ | {"TMPDIR": str(folder)}, check=False
    )
    assert ended.returncode == 2
    # Without this check the missing weights would be the mistake.
    assert "an encoder for the task embed and generates no text" in ended.stderr
    assert "to /v1/embeddings" in ended.stderr


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_model_is_talked_to_and_its_server_ends_with_the_command(folder: Path, killed: bool) -> None:
    command = [sys.executable, "-m", "numaserve.server.cli.main", "chat", "demo", *OPTIONS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=os.environ | {"TMPDIR": str(folder)}, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("Name the capital of France.\n")
        process.stdin.flush()
        assert "Paris" in process.stdout.readline()
        family = psutil.Process(process.pid).children(recursive=True)
        # The command has left no name in the file system: what is there is its server's, and goes with that.
        assert {each.name.rpartition("-")[0] for each in folder.iterdir()} <= {"numaserve-sockets"}
        assert len(family) >= 2  # the server and its worker
        if killed:
            process.kill()
        process.stdin.close()
        process.wait(PATIENCE_S)
    assert not await_ends(family)
    assert list(folder.iterdir()) == []
