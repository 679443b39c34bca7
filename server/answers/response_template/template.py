"""A model's response template and the processes that read answers with it."""

import logging
from collections.abc import Collection
from pathlib import Path
from queue import LifoQueue
from typing import Any

import msgspec
from numaserve.server.answers.response_template.errors import BadTemplate
from numaserve.server.answers.response_template.types import CALLS, THOUGHTS, Question, ReadAnswer, finder_of
from numaserve.server.confined.worker import CPU_SECONDS, SECONDS, ConfinedWorker, WorkerUnavailable, WorkFailed
from numaserve.server.text.executor import Executor
from numaserve.workers.interface.files import is_there, read_json

_log = logging.getLogger(__name__)

_PROCESSES = 2  # while one answer is stuck in an expression, the other process goes on
_MAX_BYTES = 64 * 2**20


def response_template_in(model: Path) -> dict[str, Any] | None:
    """Return the response template of the model in the folder `model`; None if the model has none."""
    path = model / "tokenizer_config.json"
    if not model.is_dir() or not is_there(path):
        return None
    found = read_json(path).get("response_template")
    return found if isinstance(found, dict) else None


class ResponseTemplate:
    """One template and its processes, each driven by a thread. For one event loop."""

    def __init__(
        self,
        definition: dict[str, Any],
        special: Collection[str] = (),
        *,
        max_answers: int,
        cpu_seconds: float = CPU_SECONDS,
        seconds: float = SECONDS,
    ) -> None:
        """Start the processes.

        `special` are the texts of special tokens. At most `max_answers` are read or wait at a time. Raises
        `BadTemplate`.
        """
        self._special = finder_of(special)
        fields = definition.get("fields")
        names = set(fields) if isinstance(fields, dict) else set()
        self.has_calls, self.has_thoughts = CALLS in names, not names.isdisjoint(THOUGHTS)
        self._workers = [
            ConfinedWorker(
                "the response template",
                "numaserve.server.answers.response_template.process",
                {"template": definition, "special": list(special)},
                max_bytes=_MAX_BYTES,
                cpu_seconds=cpu_seconds,
                seconds=seconds,
            )
            for _ in range(_PROCESSES)
        ]
        self._idle: LifoQueue[ConfinedWorker] = LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._executor = Executor("response", threads=_PROCESSES, max_requests=max_answers, waiting="answers")
        try:
            self._ask(b"null")
        except WorkerUnavailable:
            pass  # the machine is busy now; each answer would report a fault of the template
        except WorkFailed as error:
            self.close()
            raise BadTemplate(str(error)) from error

    async def read(self, question: Question) -> ReadAnswer:
        """Return the parsed answer; the whole text as content if parsing fails or takes too long.

        Raises `QueueFull`, and `NotReady` once this is closed.
        """
        with self._executor.admitted():
            read = await self._executor.run(lambda: self._read(question))
        return self.unread(question) if read is None else read

    def unread(self, question: Question) -> ReadAnswer:
        """Return the answer as content only, without separating its parts."""
        return ReadAnswer(self._special.sub("", question.text) if question.hides else question.text, "", [])

    def close(self) -> None:
        """End the processes, and read nothing more."""
        for worker in self._workers:
            worker.close()
        self._executor.close()

    def _read(self, question: Question) -> ReadAnswer | None:
        try:
            return msgspec.json.decode(self._ask(msgspec.json.encode(question)), type=ReadAnswer)
        except (WorkFailed, WorkerUnavailable, ValueError, RecursionError) as error:
            _log.warning("returned an answer as plain text, without separating tool calls and reasoning: %s", error)
            return None

    def _ask(self, piece: bytes) -> str:
        worker = self._idle.get()
        try:
            return worker.ask(piece)
        finally:
            self._idle.put(worker)
