"""Chat templates, rendered in a child process with bounded time and memory and without access to files.

A chat template is a program that came with the model. Jinja's sandbox keeps it from reaching the interpreter, but
bounds neither its time nor its memory; hence the child process.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from numaserve.server.confined.worker import CPU_SECONDS, SECONDS, ConfinedWorker, WorkerUnavailable, WorkFailed
from numaserve.server.tokenizer.types import ChatTemplateError, ChatTemplateUnavailable

MAX_CHARS = 4_000_000  # several times the text that fits the longest context


class ChatTemplate:
    """One template and the process that renders it. Thread-safe; renderings run one at a time."""

    def __init__(
        self, source: str, *, cpu_seconds: float = CPU_SECONDS, seconds: float = SECONDS, max_chars: int = MAX_CHARS
    ) -> None:
        self.source = source
        self._worker = ConfinedWorker(
            "the chat template",
            "numaserve.server.template.process",
            {"template": source, "max_chars": max_chars},
            max_bytes=4 * max_chars,
            cpu_seconds=cpu_seconds,
            seconds=seconds,
        )

    @classmethod
    def of(cls, source: str | None) -> ChatTemplate | None:
        """Return the template with this source; None without a source. Its process starts in parallel with the
        caller."""
        return cls(source) if source else None

    def render(self, arguments: Mapping[str, object] | None, optional: Mapping[str, object] | None = None) -> str:
        """Return the text for `arguments` and those `optional` arguments that the template uses and `arguments` lacks.

        If `arguments` is None, the template is only compiled. Raises `ChatTemplateError` if the template does not
        compile, refuses the arguments or exceeds a limit, and `ChatTemplateUnavailable` if its process does not answer
        in time.
        """
        try:
            # The standard library's encoder holds the GIL ten times as long for many messages.
            given = None if arguments is None else {"arguments": arguments, "optional": optional or {}}
            piece = msgspec.json.encode(given)
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatTemplateError(f"the messages cannot be passed to the chat template: {error}") from error
        try:
            return self._worker.ask(piece)
        except WorkFailed as error:
            raise ChatTemplateError(str(error)) from error
        except WorkerUnavailable as error:
            raise ChatTemplateUnavailable(str(error)) from error

    def close(self) -> None:
        """End the child process, even during a rendering; garbage collection and interpreter exit do the same."""
        self._worker.close()
