"""The import root of an environment that `make` installs into: links to the checkout."""

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "deploy" / "linked_root.py"))
link_packages: Callable[[Path, Mapping[str, str], Path], None] = TOOL["link_packages"]
FOLDERS = {"n": "n", "n/server": "server", "n/ray": "deploy/ray"}


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_linked_package_is_the_checkouts(tmp_path: Path) -> None:
    root, site = tmp_path / "checkout", tmp_path / "site"
    for name in ("n/__main__.py", "server/a.py", "server/cli/b.py", "server/__pycache__/a.pyc", "deploy/ray/c.py"):
        write(root / name, name)
    write(site / "n/server/a.py", "a copy by an earlier installation")
    write(site / "n/server/cli/old.py")
    write(site / "n/server/_native.so", "native")
    link_packages(root, FOLDERS, site)
    for path, origin in (("__main__.py", "n/__main__.py"), ("server/a.py",) * 2, ("ray/c.py", "deploy/ray/c.py")):
        assert (site / "n" / path).read_text() == origin
    assert sorted(path.name for path in (site / "n/server").iterdir()) == ["_native.so", "a.py", "cli"]

    (root / "server/a.py").unlink()
    write(root / "server/d.py")
    write(root / "server/cli/e.py")
    link_packages(root, FOLDERS, site)
    assert sorted(path.name for path in (site / "n/server").iterdir()) == ["_native.so", "cli", "d.py"]
    assert (site / "n/server/cli/e.py").exists()


def test_a_package_that_is_a_link_is_replaced_and_the_checkout_left_alone(tmp_path: Path) -> None:
    root, site = tmp_path / "checkout", tmp_path / "site"
    module = write(root / "server/a.py", "the checkout's")
    (site / "n").mkdir(parents=True)
    (site / "n/server").symlink_to(root / "server")
    link_packages(root, {"n/server": "server"}, site)
    assert not module.is_symlink()
    assert (site / "n/server/a.py").read_text() == "the checkout's"


def test_this_environment_runs_the_checkout() -> None:
    from numaserve.server.common import version

    assert Path(version.__file__).resolve() == ROOT / "server/common/version.py"
