"""Chat templates, rendered in a child process that cannot run for ever, fill the memory or open a file.

A chat template is a program that came with the model. Jinja's sandbox keeps it from reaching the interpreter, but
bounds neither its time nor its memory; hence the child.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from numaserve.server.confined.worker import CPU_SECONDS, SECONDS, ConfinedWorker, WorkerUnavailable, WorkFailed
from numaserve.server.tokenizer.types import ChatTemplateError, ChatTemplateUnavailable

MAX_CHARS = 4_000_000  # several times the text that fits the longest context


class ChatTemplate:
    """One template and the process that renders it. Safe to use from several threads; they take turns."""

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
        """Return the template with this source; None without one. Its process starts at once, beside the caller."""
        return cls(source) if source else None

    def render(self, arguments: Mapping[str, object] | None, optional: Mapping[str, object] | None = None) -> str:
        """The text for `arguments`, and for those of the `optional` ones that the template knows and `arguments` leaves
        out; None only compiles the template.

        Raises `ChatTemplateError` when the template does not compile, refuses them or goes past a limit,
        `ChatTemplateUnavailable` when its process does not answer in time.
        """
        try:
            # Not the standard library's, which holds the GIL ten times as long for many messages.
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
        """End the child process, in the middle of a rendering too; also done when the object goes away or the
        interpreter exits."""
        self._worker.close()
