"""Chat templates, rendered in a child process that cannot run for ever, fill the memory or open a file.

A chat template is a program that came with the model. Jinja's sandbox keeps it from reaching the interpreter, but
bounds neither its time nor its memory: nested loops over `range` run for years and `10 ** 10 ** 10` never returns to
any check that could be put into the front end. Only the kernel can stop that, and it stops processes; hence the child.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

from numaserve.server.tokenizer.types import ChatTemplateError

CPU_SECONDS = 2.0  # per rendering; usual templates take well under a millisecond
MAX_CHARS = 4_000_000  # several times the text that fits the longest context
MEMORY_BYTES = 512 * 2**20

_SCRIPT = Path(__file__).with_name("template_process.py")


class ChatTemplate:
    """One template and the process that renders it. Safe to use from several threads; they take turns."""

    def __init__(self, source: str, *, cpu_seconds: float = CPU_SECONDS, max_chars: int = MAX_CHARS) -> None:
        self._cpu_seconds = cpu_seconds
        config = {
            "template": source,
            "cpu_seconds": cpu_seconds,
            "max_chars": max_chars,
            "memory_bytes": MEMORY_BYTES,
        }
        self._config = json.dumps(config).encode() + b"\n"
        self._unsent_config = self._config
        self._lock = threading.Lock()
        self._start()  # now, so that it is up before the first request

    def render(self, arguments: dict[str, object]) -> str:
        """The text for `arguments`; raises `ChatTemplateError` when the template refuses them or goes past a limit."""
        try:
            line = json.dumps(arguments).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatTemplateError(f"the messages cannot be given to the chat template: {error}") from error
        with self._lock:
            # A child that was killed between requests is no fault of this request, which hence gets a second one.
            answer = self._ask(line) or self._ask(line)
        if answer is None:
            raise ChatTemplateError("the chat template failed: its process was killed twice")
        reply = json.loads(answer)
        if "text" not in reply:
            raise ChatTemplateError(reply["error"])
        return str(reply["text"])

    def close(self) -> None:
        """End the child process; also done when the object goes away or the interpreter exits."""
        with self._lock:
            self._stop()

    def _ask(self, line: bytes) -> bytes | None:
        """The child's answer, or None when it died without one."""
        if not self._stop.alive:
            self._start()
        process = self._process
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 - pipes were asked for
        try:
            process.stdin.write(self._unsent_config + line)
            process.stdin.flush()
            self._unsent_config = b""
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if answer.endswith(b"\n"):
            return answer
        self._stop()
        if process.returncode == -signal.SIGPROF:
            raise ChatTemplateError(f"the chat template ran for more than {self._cpu_seconds:g} s of processor time")
        return None

    def _start(self) -> None:
        # A preloaded allocator or sanitizer reserves more address space than the child may have.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT)],  # -P: this folder's types.py must not hide the standard one
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._stop = weakref.finalize(self, _stop, self._process)
        self._unsent_config = self._config


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Kill and reap the child, which keeps nothing that is worth a farewell."""
    process.kill()
    process.communicate()


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
