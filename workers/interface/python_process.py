"""The command and the environment of a child process that runs a module of numaserve."""

import os
import sys
from collections.abc import Mapping


def module_command(module: str) -> tuple[str, ...]:
    """Return the command that runs `module` with this interpreter, without the working folder in the module path.

    The working folder is often the folder of a model, whose files must run no code. `-I` was rejected: the option also
    ignores PYTHONPATH, through which containers find numaserve.
    """
    return sys.executable, "-P", "-m", module


def child_environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `base` for a child, with the absolute folders of PYTHONPATH alone.

    Python takes an empty or a relative entry to be in the working folder: `PYTHONPATH=$PYTHONPATH:/opt/site` begins
    with an empty entry where PYTHONPATH was not set.
    """
    environment = dict(base)
    if (value := environment.pop("PYTHONPATH", None)) is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(os.path.isabs, value.split(os.pathsep)))
    return environment
