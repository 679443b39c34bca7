"""Tests that are coroutines."""

import asyncio
import inspect
from collections.abc import Callable

import pytest


def run_coroutine(
    item: pytest.Function, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own; None: it is not one, and pytest runs it."""
    if not inspect.iscoroutinefunction(item.obj):
        return None
    arguments = {name: item.funcargs[name] for name in inspect.signature(item.obj).parameters}
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(item.obj(**arguments))
    return True
