"""An environment for each client: its packages are nobody else's."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.clients.known_clients import Client

SCRIPTS = Path(__file__).with_name("scripts")
INSTALL_SECONDS = 1200.0


def environment_of(client: Client, folder: Path) -> list[str]:
    """Make the environment of `client` in `folder` unless it is there; the command that runs the client's script."""
    made = folder / "packages.json"
    wanted = json.dumps(client.packages)
    if not made.exists() or made.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (_make_node_modules if client.in_javascript else _make_venv)(client.packages, folder)
        made.write_text(wanted)
    if client.in_javascript:
        # Node.js looks for packages beside the script.
        for script in SCRIPTS.glob("*.mjs"):
            shutil.copy(script, folder)
        return ["node", str(folder / client.script)]
    return [str(folder / "bin" / "python"), str(SCRIPTS / client.script)]


def _make_venv(packages: dict[str, str], folder: Path) -> None:
    # With -I neither looks into PYTHONPATH: what pip finds there it does not install.
    _run([sys.executable, "-I", "-m", "venv", str(folder)])
    pins = [f"{name}=={version}" for name, version in packages.items()]
    _run([str(folder / "bin" / "python"), "-I", "-m", "pip", "--disable-pip-version-check", "install", "-q", *pins])


def _make_node_modules(packages: dict[str, str], folder: Path) -> None:
    (folder / "package.json").write_text(json.dumps({"private": True, "type": "module", "dependencies": packages}))
    options = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel", "error"]
    _run(["npm", "--prefix", str(folder), "install", *options])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_SECONDS, stdout=sys.stderr)
