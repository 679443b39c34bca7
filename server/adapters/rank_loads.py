"""The messages to the ranks that load an adapter, and their answers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from numaserve.server.adapters.errors import AdapterError
from numaserve.workers.interface.protocol import AdapterLoaded, LoadAdapter, LoraAdapter

_log = logging.getLogger(__name__)


@dataclass
class _Asked:
    request: LoadAdapter
    answers: dict[int, AdapterLoaded] = field(default_factory=dict)
    complete: asyncio.Future[dict[int, AdapterLoaded]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class RankLoads:
    """Asks the ranks for one load after the other, while there are workers.

    A load that the workers die in fails and is not repeated: if its files made them die, the new workers would die too,
    and the server would give up.
    """

    def __init__(self, send: Callable[[LoadAdapter], None], world_size: int) -> None:
        self._send = send
        self._world_size = world_size
        self._ids = itertools.count()
        self._asked: _Asked | None = None
        self._why_not = "The server is loading. Retry later."

    async def load(self, adapter: LoraAdapter) -> int:
        """Return the number of matrices that the adapter changes, when every rank has loaded it. Raises
        `AdapterError`."""
        if self._why_not:
            raise AdapterError("not_ready", self._why_not)
        self._asked = asked = _Asked(LoadAdapter(next(self._ids), adapter))
        self._send(asked.request)
        answers = await asked.complete
        for rank, answer in sorted(answers.items()):
            if answer.problem:
                raise AdapterError("failed", f"worker {rank}: {answer.problem}")
        return max(each.matrices for each in answers.values())

    def on_answer(self, message: AdapterLoaded) -> None:
        """Process the answer of a rank."""
        asked = self._asked
        if asked is None or asked.request.request_id != message.request_id or message.rank in asked.answers:
            _log.warning("worker %d reported a LoRA adapter that was not requested", message.rank)
            return
        asked.answers[message.rank] = message
        if len(asked.answers) == self._world_size:
            self._asked = None
            asked.complete.set_result(asked.answers)

    def up(self) -> None:
        """Note that there are workers."""
        self._why_not = ""

    def down(self, why: str) -> None:
        """Note that there are no workers, for the reason `why`. A load in flight fails."""
        self._why_not = why
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.complete.set_exception(AdapterError("not_ready", why))
