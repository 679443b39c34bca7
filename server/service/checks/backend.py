"""The check that a backend can run on this machine, made before the workers start."""

from importlib.util import find_spec

from numaserve.server.service.checks.instruction_set import instruction_set
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import Backend


def check_backend(backend: Backend) -> str | None:
    """Return the instruction set of the kernels; None for the reference backend.

    Raises `OperatorError` if the processor or the installation lacks a requirement of the backend.
    """
    if backend == "native":
        return instruction_set()
    if find_spec("torch") is None:
        raise OperatorError("--backend reference needs torch, which is not installed: run `pip install torch`")
    return None
