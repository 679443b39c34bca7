"""Programs that the tests of the build call."""

import shutil
import sys
from pathlib import Path


def program(name: str) -> str:
    """Return the path of a program that comes as a package of the environment, or that the machine has."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert found, f"{name} is not there: `make test-packages` installs it"
    return found
