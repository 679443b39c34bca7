"""A relay between two ends of TCP connections: it delays what it forwards, and can fall silent without ending any."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

from numaserve.workers.interface.host_links import Address

_PIECE = 4096  # bytes that are delayed together
_LONGEST_S = 0.02
ANY_PORT = Address("127.0.0.1", 0)


class Relay:
    """Forwards connections to `target` from `at`, each piece after a delay of its own by `seed`.

    Port 0 of `at` takes any, and port 0 of `target` is that of `at`.
    """

    def __init__(self, target: Address, seed: int, at: Address = ANY_PORT) -> None:
        self._random = random.Random(seed)
        self.held = 0  # pieces that wait to be forwarded
        self._writers: list[asyncio.StreamWriter] = []
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._connected, *at))
        self.address = Address(at.host, self._server.sockets[0].getsockname()[1])
        self._target = Address(target.host, target.port or self.address.port)
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def fall_silent(self) -> None:
        """Forward nothing more. Connections stay open, and new ones are accepted, as with a host that hangs."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def go_on(self) -> None:
        """Forward again, what came in the meantime first."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def cut(self) -> None:
        """End all connections; what is held is lost. New ones are accepted."""
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        writers, self._writers = self._writers, []
        for each in writers:
            each.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            further = await asyncio.open_connection(self._target.host, self._target.port)
        except OSError:
            writer.close()
            return
        self._writers += [writer, further[1]]
        await asyncio.gather(self._forward(reader, further[1]), self._forward(further[0], writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE):
                await asyncio.sleep(self._random.uniform(0, _LONGEST_S))
                self.held += 1
                await self._flows.wait()
                self.held -= 1
                writer.write(piece)
                await writer.drain()
        writer.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
