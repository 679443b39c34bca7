"""A command serves, and says what is wrong by its status, with standard streams that are closed."""

import subprocess
import sys
from pathlib import Path

import pytest

# Its own streams first, then what a server does with them.
CODE = """
import logging, os, sys
from pathlib import Path
from numaserve.server.common.standard_streams import open_standard_streams
open_standard_streams()
from numaserve.server.service.process.logs import set_up_logging
set_up_logging("info")
logging.getLogger("x").warning("said to whoever listens")
sys.stdout.write("announced")
sys.stdout.flush()
sys.stderr.write("complained")
sys.stdin.read(0)
with open(os.devnull) as opened:
    assert opened.fileno() > 2
Path(sys.argv[1]).write_text("served")
"""
ALL = [("<&-",), (">&-",), ("2>&-",), ("<&-", ">&-", "2>&-")]


def run(*command: str, closed: tuple[str, ...]) -> int:
    shell = f'exec "$@" {" ".join(closed)}'
    return subprocess.run(
        ["/bin/sh", "-c", shell, "sh", *command], capture_output=True, check=False, timeout=120
    ).returncode


@pytest.mark.parametrize("closed", ALL, ids=str)
def test_what_is_written_to_closed_streams_goes_nowhere(closed: tuple[str, ...], tmp_path: Path) -> None:
    done = tmp_path / "done"
    assert run(sys.executable, "-c", CODE, str(done), closed=closed) == 0
    assert done.read_text() == "served"


def test_a_mistake_has_its_status_though_nobody_can_be_told() -> None:
    command = (sys.executable, "-m", "numaserve.server.cli.main", "serve", "/nowhere/at/all")
    assert run(*command, closed=("2>&-",)) == 2
