"""Helpers of the scripts of libraries for agents, in addition to `agent_checks`."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

from agent_checks import running, until
from pydantic import BaseModel

LONG = "Hello " * 600  # has more tokens than the server at `SMALL_URL` has room for
run = asyncio.Runner().run  # connections belong to one loop


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Madrid"]
    motto: str


def read(name: str) -> str:
    """Read a note.

    Args:
        name: of the note.
    """
    return f"a note of the name {name}"


async def leave(answering: Coroutine[Any, Any, object]) -> None:
    """Cancel a task in the middle of an answer, which has to be streamed: the server must stop generating it."""
    task = asyncio.create_task(answering)
    await asyncio.to_thread(until, lambda: running() > 0, "no request came")
    task.cancel()
    await asyncio.to_thread(until, lambda: running() == 0, "the request goes on")
