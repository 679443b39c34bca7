"""Import roots: that of the installed tree, and one of an earlier commit."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.util import find_spec
from pathlib import Path

_GIT = ("git",)
ROOT = Path(__file__).resolve().parents[2]
# Of the folders with native code: what a change of which needs another build.
_NATIVE = ("kernels", "shm_comm", ":!*.py", ":!*.pyi", ":!*.md")


def has_commit(commit: str) -> bool:
    """Return whether the checkout has `commit`; one without history, or a part of it, has not."""
    return shutil.which("git") is not None and _git("cat-file", "-e", f"{commit}^{{commit}}").returncode == 0


def installed_root() -> Path | None:
    """Return the import root that tests import, None where it is not built."""
    spec = find_spec("numaserve")
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    return next((place.parent for place in places if (place / "server").is_dir()), None)


def root_of_commit(commit: str, installed: Path, folder: Path) -> Path:
    """Make the import root of `commit` in `folder`, which is empty. The native modules are those of `installed` where
    their sources are the same; otherwise they are built, which takes minutes."""
    source, root = folder / "source", folder / "root"
    source.mkdir()
    archive = _git("archive", commit)
    archive.check_returncode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(source, filter="data")
    if _git("diff", "--quiet", commit, "--", *_NATIVE).returncode == 0:
        _lay_out(source, installed, root)
    else:
        _build(source, root)
    return root


def _lay_out(source: Path, installed: Path, root: Path) -> None:
    """Put the folders where a wheel has them, with the native modules of the tree that is installed."""
    settings = tomllib.loads((source / "pyproject.toml").read_text())
    for place, sources in settings["tool"]["scikit-build"]["wheel"]["packages"].items():
        shutil.copytree(source / sources, root / place, dirs_exist_ok=True)
    for module in (installed / "numaserve").rglob("*.so"):
        shutil.copy2(module, root / module.relative_to(installed))


def _build(source: Path, root: Path) -> None:
    """Install the sources into `root` with the compiler and the packages that `make install` has, for this machine."""
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q", "--target", str(root))
    own = "cmake.define.NUMASERVE_INSTRUCTION_SETS=native"  # earlier commits build all sets
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    if ccache := shutil.which("ccache"):
        environment |= {"CMAKE_CXX_COMPILER_LAUNCHER": ccache, "CCACHE_BASEDIR": str(source)}
    command = (sys.executable, "-m", "pip", "install", *options, "-C", own, str(source))
    subprocess.run(command, check=True, env=environment)


def git_text(*arguments: str) -> str:
    """Return the output of a git command in the checkout. Raises `CalledProcessError`."""
    done = _git(*arguments)
    done.check_returncode()
    return done.stdout.decode()


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run((*_GIT, *arguments), cwd=ROOT, capture_output=True, check=False)
