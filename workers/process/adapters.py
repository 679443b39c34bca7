"""The adapters of a rank, which it loads while it runs steps.

A thread reads and packs one adapter at a time, into a place that no step names: the front end plans no sequence with
the number of an adapter from before it asks for it until all ranks have answered. The thread that runs steps alone
reads and writes the set of what is loaded, and sends the answers.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from numaserve.workers.adapters.placing import load_adapter
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import NO_ADAPTER, AdapterLoaded, LoadAdapter, LoraAdapter
from numaserve.workers.process.rank_program import RankWeights
from numaserve.workers.weights.cache.background import leave_time_to_steps

_log = logging.getLogger(__name__)


class AdapterMissingError(Exception):
    """A plan names an adapter that this rank has not loaded. Other ranks may have it and run the plan, so this rank
    cannot refuse the plan and go on: the ranks would be in different steps."""


class RankAdapters:
    """Loads adapters into the places of a rank's weights. `wake` is called from the loading thread when an answer is
    there."""

    def __init__(self, held: RankWeights, wake: Callable[[], None]) -> None:
        self._held = held
        self._wake = wake
        self._loaded: set[int] = set()
        self._asked: SimpleQueue[LoadAdapter] = SimpleQueue()
        self._done: deque[tuple[LoraAdapter, AdapterLoaded]] = deque()
        self._thread: threading.Thread | None = None

    def load(self, adapters: Sequence[LoraAdapter]) -> list[AdapterLoaded]:
        """Load the adapters of a launch, and return the answer for each."""
        answers = [self._load(LoadAdapter(each.number, each)) for each in adapters]
        self._loaded |= {each.number for each, answer in zip(adapters, answers, strict=True) if not answer.problem}
        return answers

    def begin(self, message: LoadAdapter) -> None:
        """Load an adapter, in place of the one that has its number."""
        self._loaded.discard(message.adapter.number)
        self._asked.put(message)
        if self._thread is None:
            # A daemon: a file system that hangs cannot keep the worker from ending.
            self._thread = threading.Thread(target=self._run, name="adapters", daemon=True)
            self._thread.start()

    def answers(self) -> list[AdapterLoaded]:
        """Return the answers that are there, and let sequences use what they say is loaded."""
        answers = []
        while self._done:
            adapter, answer = self._done.popleft()
            if not answer.problem:
                self._loaded.add(adapter.number)
            answers.append(answer)
        return answers

    def check(self, number: int) -> None:
        """Raise `AdapterMissingError` for the number of an adapter that is not loaded."""
        if number != NO_ADAPTER and number not in self._loaded:
            raise AdapterMissingError(
                f"the step has a sequence with adapter {number}, which this worker has not loaded"
            )

    def _run(self) -> None:
        leave_time_to_steps(self._held.launch.cpus[self._held.launch.rank])
        while True:
            message = self._asked.get()
            self._done.append((message.adapter, self._load(message)))
            self._wake()

    def _load(self, message: LoadAdapter) -> AdapterLoaded:
        held, adapter = self._held, message.adapter
        problem, matrices = "", 0
        if not 1 <= adapter.number <= held.launch.settings.max_loras:
            problem = f"adapter {adapter.number} has no place; the server has {held.launch.settings.max_loras}"
        else:
            try:
                matrices = load_adapter(adapter, held.config, held.part, held.loaded.weights)
            except (OperatorError, OSError, MemoryError) as error:
                problem = str(error) or type(error).__name__
            except Exception as error:
                _log.exception("adapter %s cannot be loaded", adapter.path)
                problem = f"{adapter.path}: cannot be loaded ({type(error).__name__}); see the server's log"
        return AdapterLoaded(held.launch.rank, message.request_id, matrices, problem)
