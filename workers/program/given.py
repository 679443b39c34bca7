"""A packed matrix that the Program builder is given in place of a handle, where nothing is loaded: by measurements and
tests."""

from numaserve.kernels import PackedMatrix
from numaserve.workers.settings import ActivationDtype


class GivenMatrix(PackedMatrix):
    """It has what its codes in groups are multiplied by, which packed weights alone do not know."""

    activations: ActivationDtype = "bf16"
