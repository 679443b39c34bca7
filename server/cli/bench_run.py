"""The event loop of a load, and the exit status of a command whose requests failed."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from numaserve.server.loadtest.report.stats import Summary

EXIT_FAILED = 1
_T = TypeVar("_T")


def run_load(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` in an event loop of its own, and return its result."""
    # Imported here, because other commands need no event loop.
    import asyncio  # noqa: PLC0415

    import uvloop  # noqa: PLC0415

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def check_completed(summaries: Sequence[Summary]) -> None:
    """Exit with an error if requests failed."""
    failed = sum(summary.failed for summary in summaries)
    if failed:
        total = failed + sum(summary.completed for summary in summaries)
        first = next(summary.first_error for summary in summaries if summary.first_error)
        sys.stderr.write(f"numaserve: {failed} of {total} requests failed. First error: {' '.join(first.split())}\n")
        raise typer.Exit(EXIT_FAILED)
