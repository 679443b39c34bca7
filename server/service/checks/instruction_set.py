"""The instruction set of the workers' kernels, determined before the workers start."""

import subprocess
import sys

from numaserve.workers.interface.errors import OperatorError

_COMMAND = (sys.executable, "-m", "numaserve.kernels")


def instruction_set() -> str:
    """Return the instruction set that this machine offers, or that NUMASERVE_ISA forces.

    Raises `OperatorError` if the instruction set is unavailable; otherwise every worker would fail after loading its
    weights. A separate process finds out, because the front end, which serves untrusted clients, loads no kernels.
    """
    done = subprocess.run(_COMMAND, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OperatorError((done.stderr.strip().splitlines() or ["numaserve's compute kernels cannot be loaded"])[-1])
    return done.stdout.strip()
