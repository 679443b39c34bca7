"""The instruction set and the digest of the workers' kernels, determined before the workers start.

A separate process finds them out, because the front end, which serves untrusted clients, loads no kernels.
"""

import subprocess
from collections.abc import Collection, Sequence
from typing import NamedTuple

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.python_process import child_environment, module_command
from numaserve.workers.interface.settings import Backend

_COMMAND = module_command("numaserve.kernels")
_DIGEST_COMMAND = module_command("numaserve.kernels.build")


class InstructionSet(NamedTuple):
    """The instruction set that kernels use, and the better one of the processor that this build lacks, or ""."""

    name: str
    unbuilt: str


def instruction_set() -> InstructionSet:
    """Return the instruction set that this machine offers, or that NUMASERVE_ISA forces.

    Raises `OperatorError` if the instruction set is unavailable; otherwise every worker would fail after loading its
    weights.
    """
    name, unbuilt = _output_of(_COMMAND).splitlines()
    return InstructionSet(name, unbuilt)


def instruction_set_for(backends: Collection[Backend]) -> InstructionSet | None:
    """Return the instruction set; None if none of the backends uses kernels. Raises `OperatorError`."""
    return instruction_set() if "native" in backends else None


def name_of(kernels: InstructionSet | None) -> str | None:
    """Return the name of the instruction set; None if no kernels are used."""
    return None if kernels is None else kernels.name


def kernels_digest() -> str:
    """Return the digest of the native module. Raises `OperatorError`."""
    return _output_of(_DIGEST_COMMAND).strip()


def _output_of(command: Sequence[str]) -> str:
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OperatorError((done.stderr.strip().splitlines() or ["numaserve's compute kernels cannot be loaded"])[-1])
    return done.stdout
