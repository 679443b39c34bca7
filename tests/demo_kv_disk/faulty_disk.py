"""A folder on a disk that has faults on order: see `faulty_disk.cc`."""

import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".cc")


def compiled(place: Path) -> Path:
    """Compile the library that makes a disk faulty, and return its path."""
    library = place / "faulty_disk.so"
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
    return library


class FaultyDisk:
    """A folder whose servers get `environment`. Faults hold for those that run and for later ones."""

    def __init__(self, place: Path, library: Path, copied: Path | None = None) -> None:
        """Make a place with a folder, which begins as a copy."""
        place.mkdir()
        self.folder = place.resolve() / "disk"
        if copied is not None:
            shutil.copytree(copied, self.folder)
        self._orders = place.resolve() / "orders"
        self.environment = {
            "LD_PRELOAD": str(library.resolve()),
            "FAULTY_DISK": str(self.folder),
            "FAULTY_DISK_ORDER": str(self._orders),
        }
        self.order("")

    def order(self, fault: str) -> None:
        """Make the disk have a fault, which `faulty_disk.cc` names; empty: it has none."""
        new = self._orders.with_suffix(".new")
        new.write_text(fault)
        new.replace(self._orders)  # at once: no call sees an empty file
