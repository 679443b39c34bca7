"""Which kernels the workers will run, known before they start."""

from __future__ import annotations

from numaserve.workers.errors import OperatorError


def instruction_set() -> str:
    """The instruction set that this machine offers, or that NUMASERVE_ISA forces.

    Raises `OperatorError` when it cannot be had: every worker would fail of it, after it had loaded its weights.
    """
    # Other commands do without loading the native kernels.
    from numaserve import kernels  # noqa: PLC0415

    try:
        return kernels.isa()
    except (ValueError, RuntimeError) as error:
        raise OperatorError(str(error)) from None
