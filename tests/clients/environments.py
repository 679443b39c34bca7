"""An environment for each client: its packages are nobody else's."""

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.clients.known_clients import Client

SCRIPTS = Path(__file__).with_name("scripts")
INSTALL_SECONDS = 1200.0


def environment_of(client: Client, folder: Path) -> list[str]:
    """Make the environment of `client` in `folder` unless it is there; the command that runs the client's script, which
    finds the environment's own commands in `commands_of`."""
    if client.in_javascript:
        node_modules_with(client.packages, folder)
        # Node.js looks for packages beside the script.
        for script in SCRIPTS.glob("*.mjs"):
            shutil.copy(script, folder)
        return ["node", str(folder / client.script)]
    if client.npm:
        node_modules_with(client.packages, folder)
        return [sys.executable, str(SCRIPTS / client.script)]
    return [str(python_with(client.packages, folder)), str(SCRIPTS / client.script)]


def commands_of(client: Client, folder: Path) -> Path:
    """Return where the environment in `folder` has its commands."""
    return folder / "node_modules" / ".bin" if client.npm else folder / "bin"


def python_with(packages: dict[str, str], folder: Path) -> Path:
    """The interpreter of an environment in `folder` with these packages, by name and version, and what they need."""
    _make(packages, folder, _make_venv)
    return folder / "bin" / "python"


def wheels_in(packages: dict[str, str], folder: Path) -> Path:
    """The folder of packages of an environment in `folder` with these packages alone, whatever they need."""
    _make(packages, folder, functools.partial(_make_venv, more=("--no-deps",)))
    (found,) = folder.glob("lib/python*/site-packages")
    return found


def node_modules_with(packages: dict[str, str], folder: Path) -> None:
    """Put these packages of npm, by name and version, and what they need, into `folder`."""
    _make(packages, folder, _make_node_modules)


def _make(packages: dict[str, str], folder: Path, install: Callable[[dict[str, str], Path], None]) -> None:
    made = folder / "packages.json"
    wanted = json.dumps(packages)
    if not made.exists() or made.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        install(packages, folder)
        made.write_text(wanted)


def _make_venv(packages: dict[str, str], folder: Path, more: Sequence[str] = ()) -> None:
    # With -I neither looks into PYTHONPATH: what pip finds there it does not install.
    _run([sys.executable, "-I", "-m", "venv", str(folder)])
    pins = [f"{name}=={version}" for name, version in packages.items()]
    pip = [str(folder / "bin" / "python"), "-I", "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "-q", *more, *pins])


def _make_node_modules(packages: dict[str, str], folder: Path) -> None:
    (folder / "package.json").write_text(json.dumps({"private": True, "type": "module", "dependencies": packages}))
    options = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel", "error"]
    _run(["npm", "--prefix", str(folder), "install", *options])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_SECONDS, stdout=sys.stderr)
