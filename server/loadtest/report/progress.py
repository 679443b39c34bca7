"""The progress bar on standard error while requests run."""

from __future__ import annotations

from types import TracebackType

from numaserve.server.loadtest.workload.requests import Outcome
from rich import progress as rich_progress
from rich.console import Console


class Progress:
    """The progress bar, with the numbers of done and failed requests. Shown only if standard error is a terminal."""

    def __init__(self, label: str, total: int) -> None:
        console = Console(stderr=True)
        self._bar = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[failed]} failed"),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            # Client and server often share cores: the bar must not disturb the measurement.
            refresh_per_second=2,
            disable=not console.is_terminal,
        )
        self._failed = 0
        self._task = self._bar.add_task(label, total=total, failed=0)

    def done(self, outcome: Outcome) -> None:
        """Count a request that has ended."""
        self._failed += outcome.error is not None
        self._bar.update(self._task, advance=1, failed=self._failed)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
