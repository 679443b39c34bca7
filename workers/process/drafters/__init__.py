"""The drafters of the workers: modules with a function `make`, under their names in `WORKER_DRAFTERS`."""

from importlib import import_module

from numaserve.workers.interface.drafters import WORKER_DRAFTERS
from numaserve.workers.process.drafter import Drafter, RankParts


def make_drafter(parts: RankParts) -> Drafter | None:
    """Return the drafter that the launch names, made by `make` in the module of this name."""
    name = parts.launch.drafter
    if name not in WORKER_DRAFTERS:
        return None
    made: Drafter = import_module(f"{__name__}.{name}").make(parts)
    return made
