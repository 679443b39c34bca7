"""Chat templates, rendered in a child process that cannot run for ever, fill the memory or open a file.

A chat template is a program that came with the model. Jinja's sandbox keeps it from reaching the interpreter, but
bounds neither its time nor its memory: nested loops over `range` run for years and `10 ** 10 ** 10` never returns to
any check that could be put into the front end. Only the kernel can stop that, and it stops processes; hence the child.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Mapping

import msgspec
from numaserve.server.child_process import ChildProcess, Ended, TooLate
from numaserve.server.template import ANSWER_HEAD, NOT_CONFINED
from numaserve.server.tokenizer.types import ChatTemplateError, ChatTemplateUnavailable

CPU_SECONDS = 2.0  # per rendering; usual templates take well under a millisecond
# Wall time, start of the process included: several times as much, for a machine whose cores are all busy. Only a
# process that is stopped, or does not get a core at all, takes so long.
SECONDS = 10.0
MAX_CHARS = 4_000_000  # several times the text that fits the longest context
MEMORY_BYTES = 512 * 2**20

_COMMAND = (sys.executable, "-P", "-m", "numaserve.server.template.process")


class ChatTemplate:
    """One template and the process that renders it. Safe to use from several threads; they take turns."""

    def __init__(
        self, source: str, *, cpu_seconds: float = CPU_SECONDS, seconds: float = SECONDS, max_chars: int = MAX_CHARS
    ) -> None:
        self._cpu_seconds = cpu_seconds
        self._seconds = seconds
        self._max_bytes = 4 * max_chars
        config = {"template": source, "cpu_seconds": cpu_seconds, "max_chars": max_chars, "memory_bytes": MEMORY_BYTES}
        self._config = json.dumps(config).encode() + b"\n"
        self._unsent_config = self._config
        self._lock = threading.Lock()
        self._closed = False
        self._start()  # now, so that it is up before the first request

    def render(self, arguments: Mapping[str, object] | None, optional: Mapping[str, object] | None = None) -> str:
        """The text for `arguments`, and for those of the `optional` ones that the template knows and `arguments` leaves
        out; None only compiles the template.

        Raises `ChatTemplateError` when the template does not compile, refuses them or goes past a limit,
        `ChatTemplateUnavailable` when its process does not answer in time.
        """
        try:
            # Not the standard library's, which holds the GIL ten times as long for many messages.
            given = None if arguments is None else {"arguments": arguments, "optional": optional or {}}
            line = msgspec.json.encode(given) + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatTemplateError(f"the messages cannot be given to the chat template: {error}") from error
        with self._lock:
            # A child that was killed between requests is no fault of this request, which hence gets a second one.
            answer = self._ask(line) or self._ask(line)
        if answer is None:
            raise ChatTemplateError("the chat template failed: its process was killed twice")
        success, text = answer
        if not success:
            raise ChatTemplateError(text)
        return text

    def close(self) -> None:
        """End the child process, in the middle of a rendering too; also done when the object goes away or the
        interpreter exits."""
        self._closed = True
        self._process.kill()
        with self._lock:
            self._process.stop()

    def _ask(self, line: bytes) -> tuple[bool, str] | None:
        """Whether the child made a text, and that or its complaint; None when it died without an answer."""
        if self._process.is_stopped and not self._closed:
            self._start()
        if self._closed:  # asked after the start: `close` may not have seen the new process
            raise ChatTemplateUnavailable("The server is shutting down.")
        process = self._process
        try:
            answer = self._exchange(process, line, time.monotonic() + self._seconds)
        except TooLate:
            process.stop()
            message = f"The chat template's process did not answer within {self._seconds:g} s. Try again."
            raise ChatTemplateUnavailable(message) from None
        if answer is not None:
            return answer
        process.stop()
        if process.returncode == -signal.SIGPROF:
            raise ChatTemplateError(f"the chat template ran for more than {self._cpu_seconds:g} s of processor time")
        if process.returncode == NOT_CONFINED:
            raise ChatTemplateError("chat templates need a kernel that takes seccomp filters, and this one does not")
        return None

    def _exchange(self, process: ChildProcess, line: bytes, deadline: float) -> tuple[bool, str] | None:
        try:
            process.send(self._unsent_config + line, deadline)
            self._unsent_config = b""
            success, size = ANSWER_HEAD.unpack(process.receive(ANSWER_HEAD.size, deadline))
            if size > self._max_bytes:
                return None
            return success, process.receive(size, deadline).decode("utf-8", "surrogatepass")
        except (Ended, UnicodeDecodeError):
            return None

    def _start(self) -> None:
        self._process = ChildProcess(_COMMAND)
        self._unsent_config = self._config


def flatten_content(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """The messages with a content of text parts joined to one string, which every template understands.

    Parts are joined by newlines, as vLLM does. Raises `ChatTemplateError` for a part that is not text.
    """
    return [{**message, "content": _text(message.get("content"))} for message in messages]


def _text(content: object) -> object:
    if not isinstance(content, list):
        return content
    texts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ChatTemplateError("only text can be in the content of a message")
        texts.append(text)
    return "\n".join(texts)
