"""Decodes long bodies in another process: a JSON decoder holds the interpreter's lock from beginning to end, so that in
a thread it would stop every stream of the server as well.

The process is started for the first long body: usual ones are decoded in the event loop in well under a millisecond.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
from numaserve.server.common.patience import Patience
from numaserve.server.confined.child_process import ChildProcess, Ended, TooLate, command_of
from numaserve.server.engine.types import NotReady, QueueFull
from numaserve.server.http.body.decode import Decoded
from numaserve.server.http.body.pieces import Piece, put_together
from numaserve.server.http.errors import ApiError
from numaserve.server.http.fields.types import Strict

_MAX_WAITING = 64
_DEADLINE_S = 20.0  # of one body; the longest takes under a second of processor time
_COMMAND = command_of("numaserve.server.app.decode_main")


class DecodingProcess:
    """One process and the thread that talks to it, for one body after the other."""

    def __init__(self, deadline_s: float = _DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="decode")
        self._process: ChildProcess | None = None
        self._waiting = 0
        self._closed = False

    async def decode(self, model: type[Strict], data: bytes, *, refuse_unknown: bool) -> Decoded:
        """Decode `data`. Raises `QueueFull`, `ApiError` when the process is stuck or dies of the body, and `NotReady`
        once this is closed.

        When the caller is cancelled, a body that waits is dropped; one that is being decoded is decoded for nobody.
        """
        self._check_open()
        if self._waiting >= _MAX_WAITING:
            raise QueueFull(
                f"{self._waiting} long requests are waiting to be decoded (limit {_MAX_WAITING}). Retry after 1 s.", 1
            )
        head = msgspec.json.encode({"model": model.__name__, "refuse_unknown": refuse_unknown, "length": len(data)})
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
        """End the process, and with it the body that is being decoded; those that wait are not. May be called twice."""
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
        """The answer, or None when there is none. Raises `NotReady`."""
        try:
            # A process that was killed between two bodies is no fault of this one, which hence gets a second process.
            return self._ask_once(head, data) or self._ask_once(head, data)
        except TooLate:
            return None

    def _ask_once(self, head: bytes, data: bytes) -> Decoded | None:
        self._check_open()
        process, patience = self._running(), Patience(self._deadline_s)
        try:
            self._check_open()  # again: `close` may not have seen a new process
            process.send(head, patience)
            process.send(data, patience)
            return msgspec.convert(put_together(_received(process, patience)), Decoded)
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


def _received(process: ChildProcess, patience: Patience) -> Iterator[Piece]:
    """The pieces of an answer. Between two of them other threads have their turn."""
    while length := int.from_bytes(process.receive(8, patience), "little"):
        yield msgspec.json.decode(process.receive(length, patience), type=Piece)
