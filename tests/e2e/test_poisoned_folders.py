"""Modules that lie in the folder where one starts, in the model's and in the state's run nowhere."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from numaserve.workers.interface.python_process import child_environment, module_command

from tests.support.chat_model import MODEL, write_model

SCRIPT = (str(Path(sys.executable).with_name("numaserve")),)
POISON = ("msgspec.py", "numpy.py", "json.py", "numaserve/__init__.py", "sitecustomize.py")
LONG = "x" * 2**20  # a body that another process decodes


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder for all that a server writes; its path is short, because paths of sockets have a limit."""
    with tempfile.TemporaryDirectory(prefix="ns-") as folder:
        yield Path(folder)


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The file that a poisoned module writes."""
    return tmp_path / "ran"


def poison(folder: Path, ran: Path) -> Path:
    for name in POISON:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"with open({str(ran)!r}, 'a') as file:\n    file.write(__file__ + '\\n')\n")
    return folder


@contextmanager
def served(command: Sequence[str], start: Path, model: Path, state: Path) -> Iterator[str]:
    """The address of a server that was started in the folder `start`."""
    environment = os.environ | {"XDG_CACHE_HOME": str(state), "TMPDIR": str(state)}
    options = ("--port", "0", "--kv-cache-gib", "0.1", "--context-length", "256")
    run = [*command, "serve", str(model), *options]
    with subprocess.Popen(run, cwd=start, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert " is served at " in line
            yield line.split(" is served at ")[1].split()[0]
        finally:
            process.terminate()


def test_no_process_of_a_server_takes_a_module_from_the_folder_of_its_model(
    tmp_path: Path, state: Path, ran: Path
) -> None:
    model = poison(write_model(tmp_path, MODEL), ran)
    poison(state, ran)
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    with served(SCRIPT, model, Path(), state) as url:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "unknown": LONG}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body | {"response_format": schema}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert not ran.exists(), ran.read_text()


@pytest.mark.parametrize("command", [SCRIPT, (sys.executable, "-m", "numaserve")])
def test_a_checkout_in_the_working_folder_is_not_what_runs(tmp_path: Path, state: Path, command: Sequence[str]) -> None:
    """A checkout has the name of the import root, but nothing that is compiled."""
    for name in ("server/__init__.py", "kernels/__init__.py", "workers/__init__.py"):
        of_checkout = tmp_path / "numaserve" / name
        of_checkout.parent.mkdir(parents=True)
        of_checkout.write_text("raise SystemExit('of the checkout')")
    with served(command, tmp_path, write_model(tmp_path, MODEL), state) as url:
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200


def test_a_child_takes_no_module_from_an_unnamed_entry_of_the_module_path(tmp_path: Path, ran: Path) -> None:
    environment = child_environment(os.environ | {"PYTHONPATH": f":.:{tmp_path / 'absolute'}"})
    assert environment["PYTHONPATH"] == str(tmp_path / "absolute")
    run = {"cwd": poison(tmp_path, ran), "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(module_command("numaserve.kernels"), **run, check=False)
    assert (done.returncode, ran.exists()) == (0, False), done.stderr
