"""A relay between two ends of TCP connections: it delays what it forwards, and can fall silent without ending any."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

from numaserve.workers.interface.host_links import Address

_PIECE = 4096  # bytes that are delayed together
_LONGEST_S = 0.02


class Relay:
    """Forwards connections to `target` from a port of 127.0.0.1, each piece after a delay of its own by `seed`."""

    def __init__(self, target: Address, seed: int) -> None:
        self._target, self._random = target, random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def fall_silent(self) -> None:
        """Forward nothing more. Connections stay open, and new ones are accepted, as with a host that hangs."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def go_on(self) -> None:
        """Forward again, what came in the meantime first."""
        self._loop.call_soon_threadsafe(self._flows.set)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            further = await asyncio.open_connection(self._target.host, self._target.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._forward(reader, further[1]), self._forward(further[0], writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE):
                await asyncio.sleep(self._random.uniform(0, _LONGEST_S))
                await self._flows.wait()
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
