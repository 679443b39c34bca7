"""A packed matrix that the Program builder is given in place of a handle, where nothing is loaded: by measurements and
tests."""

from numaserve.kernels import PackedMatrix
from numaserve.workers.interface.settings import ActivationDtype
from numaserve.workers.program.ops.base import Adapters


class GivenMatrix(PackedMatrix):
    """A matrix with the data type that its grouped codes are multiplied by, which packed weights do not store."""

    activations: ActivationDtype = "bf16"
    adapters: Adapters | None = None
