"""The instruction set of the workers' kernels, known before they start."""

import subprocess
import sys

from numaserve.workers.interface.errors import OperatorError

_COMMAND = (sys.executable, "-m", "numaserve.kernels")


def instruction_set() -> str:
    """The instruction set that this machine offers, or that NUMASERVE_ISA forces.

    Raises `OperatorError` when it cannot be had: every worker would fail of it, after it had loaded its weights. A
    process of its own looks: the front end, which strangers talk to, loads no kernels.
    """
    done = subprocess.run(_COMMAND, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OperatorError((done.stderr.strip().splitlines() or ["numaserve's compute kernels cannot be loaded"])[-1])
    return done.stdout.strip()
