"""The check that block sizes of a file are for this machine, made before the workers start."""

import logging
from collections.abc import Mapping
from pathlib import Path

from numaserve.server.service.checks.instruction_set import kernels_digest
from numaserve.workers.planning.doctor.host import read_processor
from numaserve.workers.planning.found_blocking import Swept, read_blocking

_log = logging.getLogger(__name__)


def blocking_for_ranks(path: Path | None, isa: str | None) -> Mapping[str, int]:
    """Return the block sizes of the file for all ranks. Empty without a file, and for another machine or other kernels:
    the log then states the difference. `isa`: the instruction set of the kernels; None for the reference backend.

    Raises `OperatorError` for a file that cannot be read.
    """
    if path is None:
        return {}
    found = read_blocking(path)
    if isa is None:
        _log.warning("not using the block sizes of %s, because the reference backend has no kernels", path)
        return {}
    differences = found.differences(Swept.on(read_processor(), isa, kernels_digest()))
    if differences:
        _log.warning(
            "not using the block sizes of %s, because they are for another machine or other kernels: %s. Write the file"
            " again with `numaserve bench kernels --sweep --write FILE`",
            path,
            ", ".join(f"{name} {then} instead of {now}" for name, (then, now) in differences.items()),
        )
        return {}
    sizes = ", ".join(f"{name} {size}" for name, size in found.blocking.items())
    _log.info("using the block sizes of %s: %s", path, sizes)
    return found.blocking
