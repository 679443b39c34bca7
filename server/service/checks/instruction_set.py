"""The instruction set of the workers' kernels, determined before the workers start."""

import subprocess
from collections.abc import Collection
from typing import NamedTuple

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.python_process import child_environment, module_command
from numaserve.workers.interface.settings import Backend

_COMMAND = module_command("numaserve.kernels")


class InstructionSet(NamedTuple):
    """The instruction set that kernels use, and the better one of the processor that this build lacks, or ""."""

    name: str
    unbuilt: str
    digest: str  # of the native module


def instruction_set() -> InstructionSet:
    """Return the instruction set that this machine offers, or that NUMASERVE_ISA forces.

    Raises `OperatorError` if the instruction set is unavailable; otherwise every worker would fail after loading its
    weights. A separate process finds out, because the front end, which serves untrusted clients, loads no kernels.
    """
    done = subprocess.run(_COMMAND, env=child_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OperatorError((done.stderr.strip().splitlines() or ["numaserve's compute kernels cannot be loaded"])[-1])
    name, unbuilt, digest = done.stdout.splitlines()
    return InstructionSet(name, unbuilt, digest)


def isa_for(backends: Collection[Backend]) -> str | None:
    """Return the name of the instruction set; None if none of the backends uses kernels. Raises `OperatorError`."""
    return instruction_set().name if "native" in backends else None
