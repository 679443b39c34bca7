"""``python deploy/linked_root.py SITE``: links the packages of this checkout into SITE, where they run as they are.

A change in Python takes effect without an installation. The native modules are files next to the links. The editable
mode of scikit-build-core was rejected: its finder knows only the files that were there when it was installed, and each
process reads that list.
"""

import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def packages(root: Path = ROOT) -> dict[str, str]:
    """Return the folder of each package of the wheel, relative to the checkout, by the package's path."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["scikit-build"]
    return dict(settings["wheel"]["packages"])


def link_packages(root: Path, folders: Mapping[str, str], site: Path) -> None:
    """Link each entry of the packages' folders below `site`; what is linked already is left alone.

    Links to entries that are gone are removed, and so are copies by an earlier installation. A package that is itself a
    link is replaced: entries made through it would overwrite the checkout.
    """
    for package, folder in folders.items():
        linked = site / package
        if linked.is_symlink():
            linked.unlink()
        linked.mkdir(parents=True, exist_ok=True)
        for old in linked.iterdir():
            if not old.exists():
                old.unlink()
        for entry in (root / folder).iterdir():
            if entry.name != "__pycache__":
                _link(entry, linked / entry.name)


def _link(entry: Path, link: Path) -> None:
    if link.is_symlink() and link.readlink() == entry:
        return
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    else:
        link.unlink(missing_ok=True)
    link.symlink_to(entry)


if __name__ == "__main__":
    link_packages(ROOT, packages(), Path(sys.argv[1]))
