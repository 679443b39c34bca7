"""Whether a backend can run here, known before the workers start."""

from importlib.util import find_spec

from numaserve.server.service.instruction_set import instruction_set
from numaserve.workers.errors import OperatorError
from numaserve.workers.settings import Backend


def check_backend(backend: Backend) -> None:
    """Raises `OperatorError` where the processor or the installation lacks what the backend needs."""
    if backend == "native":
        instruction_set()
    elif find_spec("torch") is None:
        raise OperatorError("--backend reference needs torch: pip install 'numaserve[reference]'")
