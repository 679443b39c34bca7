"""The check that a backend can run on this machine, made before the workers start."""

import logging
from importlib.util import find_spec

from numaserve.server.service.checks.instruction_set import InstructionSet, instruction_set
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import Backend

_log = logging.getLogger(__name__)


def check_backend(backend: Backend, known: InstructionSet | None = None) -> InstructionSet | None:
    """Return the instruction set of the kernels, `known` if a gateway has found it out; None for the reference backend.

    Raises `OperatorError` if the processor or the installation lacks a requirement of the backend.
    """
    if backend == "native":
        kernels = known or instruction_set()
        if kernels.unbuilt:
            _log.warning(
                "the processor has %s, which this installation was built without; the kernels use %s. Install a wheel, "
                "or build on this host: `make install`",
                kernels.unbuilt,
                kernels.name,
            )
        return kernels
    if find_spec("torch") is None:
        raise OperatorError("--backend reference needs torch, which is not installed: run `pip install torch`")
    return None
