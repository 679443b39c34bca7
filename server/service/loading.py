"""The progress of loading: a bar on a terminal, a log line at every quarter elsewhere."""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from numaserve.server.service.process.systemd import ServiceManager
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

_log = logging.getLogger(__name__)


class LoadingDisplay:
    """The progress bar over the packed weights of all ranks, mirrored in the service manager's status line."""

    def __init__(self, model_name: str, service_manager: ServiceManager, *, bar: bool = True) -> None:
        """Create the display. Without `bar`, progress goes to log lines on a terminal too."""
        self._model_name = model_name
        self._service_manager = service_manager
        self._quarter = 0
        self._progress = Progress(
            TextColumn("loading {task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not (bar and sys.stderr.isatty()),
            transient=True,
        )
        self._task = self._progress.add_task(model_name, total=None)

    def __enter__(self) -> LoadingDisplay:
        self._progress.start()
        self._service_manager.status(f"loading {self._model_name}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes of all ranks are packed."""
        self._progress.update(self._task, completed=done, total=total)
        percent = 100 * done // max(total, 1)
        self._service_manager.status(f"loading {self._model_name}: {percent} %")
        if self._progress.disable and percent // 25 > self._quarter:
            self._quarter = percent // 25
            _log.info("loading %s: %d %%", self._model_name, percent)
