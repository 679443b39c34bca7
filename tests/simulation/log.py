"""The server's log, as a part of the run's."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from numaserve.server.scheduler.errors import ResultMismatch
from numaserve.server.supervisor.group import GroupFailed

from tests.simulation.world import World


class _LogHandler(logging.Handler):
    """Puts the server's log into that of the run, and finds exceptions in it that nobody meant to happen."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.note("log", record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, ResultMismatch | GroupFailed) and str(error) != "on purpose":
            self._world.violate(f"{record.getMessage()}: {error!r}")


@contextmanager
def logged_to(world: World) -> Iterator[None]:
    """Have the server log to `world` and to nobody else."""
    logger, handler = logging.getLogger("numaserve"), _LogHandler(world)
    before = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate, logger.level = before
