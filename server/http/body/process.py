"""Decoding of long bodies in another process.

A JSON decoder holds the interpreter's lock from beginning to end, so even in a thread it would stop every stream of the
server. The process is started for the first long body: ordinary bodies are decoded in the event loop in well under a
millisecond.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
from numaserve.server.common.patience import Patience
from numaserve.server.confined.child_process import ChildProcess, Ended, TooLate
from numaserve.server.engine.types import NotReady, QueueFull
from numaserve.server.http.body.decode import Decoded
from numaserve.server.http.body.opaque import text_of
from numaserve.server.http.body.pieces import Piece, put_together
from numaserve.server.http.errors import ApiError
from numaserve.server.http.fields.types import Strict
from numaserve.workers.interface.python_process import module_command

_MAX_WAITING = 64
_DEADLINE_S = 20.0  # for one body; the longest takes under a second of processor time
_COMMAND = module_command("numaserve.server.app.decode_main")


class DecodingProcess:
    """A process, and the thread that exchanges data with it, for one body after another."""

    def __init__(self, deadline_s: float = _DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decode")
        self._process: ChildProcess | None = None
        self._waiting = 0
        self._closed = False

    async def decode(
        self, model: type[Strict], data: bytes, *, refuse_unknown: bool, max_text_bytes: int | None = None
    ) -> Decoded:
        """Decode `data`, unless it has more than `max_text_bytes` without its opaque texts; None stands for any number.

        Raises `QueueFull`, `ApiError` if the process hangs or dies on the body, and `NotReady` once this is closed. If
        the caller is cancelled, a waiting body is dropped; for a body in progress, the result is discarded.
        """
        self._check_open()
        if self._waiting >= _MAX_WAITING:
            raise QueueFull(
                f"{self._waiting} long requests are waiting to be decoded (limit {_MAX_WAITING}). Retry after 1 s.", 1
            )
        head = msgspec.json.encode(
            {
                "model": model.__name__,
                "refuse_unknown": refuse_unknown,
                "length": len(data),
                "max_text_bytes": len(data) if max_text_bytes is None else max_text_bytes,
            }
        )
        self._waiting += 1
        try:
            answer = await asyncio.wrap_future(self._thread.submit(self._ask, head + b"\n", data))
        finally:
            self._waiting -= 1
        if answer is None:
            raise ApiError(
                503,
                "The server failed to decode the request body. Try again.",
                kind="server_error",
                code="decoding_failed",
            )
        return answer

    def close(self) -> None:
        """End the process and the body in progress; waiting bodies are not served. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._process is not None:
            self._process.kill()
        self._thread.submit(self._end)
        self._thread.shutdown(wait=False)

    def _check_open(self) -> None:
        if self._closed:
            raise NotReady("The server is shutting down.")

    def _ask(self, head: bytes, data: bytes) -> Decoded | None:
        """Return the answer; None if there is none. Raises `NotReady`."""
        try:
            # If the process was killed between two bodies, this body is not at fault, so it gets a second process.
            return self._ask_once(head, data) or self._ask_once(head, data)
        except TooLate:
            return None

    def _ask_once(self, head: bytes, data: bytes) -> Decoded | None:
        self._check_open()
        process, patience = self._running(), Patience(self._deadline_s)
        try:
            self._check_open()  # again: `close` may have missed a new process
            process.send(head, patience)
            process.send(data, patience)
            pieces = (msgspec.json.decode(part, type=Piece) for part in _received(process, patience))
            decoded = msgspec.convert(put_together(pieces), Decoded)
            opaque = iter(lambda: text_of(_received(process, patience)), "")
            return msgspec.structs.replace(decoded, opaque=list(opaque))
        except BaseException as error:
            self._end()
            if isinstance(error, Ended):
                return None
            raise

    def _end(self) -> None:
        if self._process is not None:
            self._process.stop()
        self._process = None

    def _running(self) -> ChildProcess:
        if self._process is None:
            self._process = ChildProcess(_COMMAND)
        return self._process


def _received(process: ChildProcess, patience: Patience) -> Iterator[bytes]:
    """Yield some parts of an answer. Other threads can run between two parts."""
    while length := int.from_bytes(process.receive(8, patience), "little"):
        yield process.receive(length, patience)
