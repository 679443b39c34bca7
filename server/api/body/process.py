"""Decodes long bodies in another process: a JSON decoder holds the interpreter's lock from beginning to end, so that in
a thread it would stop every stream of the server as well.

The process is started for the first long body: usual ones are decoded in the event loop in well under a millisecond.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
from numaserve.server.api.body.decode import Decoded
from numaserve.server.api.errors import ApiError
from numaserve.server.api.schemas import Strict
from numaserve.server.engine.types import QueueFull

_MAX_WAITING = 64
_DEADLINE_S = 20.0  # of one body; the longest takes under a second of processor time
_COMMAND = (sys.executable, "-P", "-m", "numaserve.server.api.body.process_main")


class DecodingProcess:
    """One process and the thread that talks to it, for one body after the other."""

    def __init__(self, deadline_s: float = _DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decode")
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: weakref.finalize[[subprocess.Popen[bytes]], DecodingProcess] | None = None
        self._waiting = 0

    async def decode(self, model: type[Strict], data: bytes, *, refuse_unknown: bool) -> Decoded:
        """Decode `data`. Raises `QueueFull`, and `ApiError` when the process is stuck or dies of the body.

        When the caller is cancelled, a body that waits is dropped; one that is being decoded is decoded for nobody.
        """
        if self._waiting >= _MAX_WAITING:
            raise QueueFull(f"{self._waiting} long requests wait to be decoded, which is as many as may.", 1)
        head = msgspec.json.encode({"model": model.__name__, "refuse_unknown": refuse_unknown, "length": len(data)})
        self._waiting += 1
        try:
            answer = await asyncio.wrap_future(self._thread.submit(self._ask, head + b"\n", data))
        finally:
            self._waiting -= 1
        if answer is None:
            raise ApiError(
                503, "The body could not be decoded. Try again.", kind="server_error", code="decoding_failed"
            )
        return msgspec.msgpack.decode(answer, type=Decoded)

    def close(self) -> None:
        """End the process; also done when the object goes away or the interpreter exits."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._end()

    def _ask(self, head: bytes, data: bytes) -> bytes | None:
        # A process that was killed between two bodies is no fault of this one, which hence gets a second process.
        return self._ask_once(head, data) or self._ask_once(head, data)

    def _ask_once(self, head: bytes, data: bytes) -> bytes | None:
        """The encoded answer, or None when the process ended without one or did not answer in time."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 - pipes were asked for
        deadline = threading.Timer(self._deadline_s, process.kill)
        deadline.start()
        try:
            process.stdin.write(head)
            process.stdin.write(data)
            process.stdin.flush()
            length = process.stdout.read(8)
            answer = process.stdout.read(int.from_bytes(length, "little"))
            if answer:
                return answer
        except BrokenPipeError:
            pass
        finally:
            deadline.cancel()
        self._end()
        return None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._stop = weakref.finalize(self, _stop, self._process)
        return self._process

    def _end(self) -> None:
        if self._stop is not None:
            self._stop()
        self._process = None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Kill and reap the process, which keeps nothing that is worth a farewell."""
    process.kill()
    with suppress(BrokenPipeError):
        process.communicate()
