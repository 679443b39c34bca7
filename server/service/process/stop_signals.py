"""The signals of a service."""

import asyncio
import signal

from numaserve.server.connection.tls import Certificate
from numaserve.server.service.process.key_sources import KeySources
from numaserve.server.service.process.reload import Reloader


class StopSignals:
    """The stop events. The first SIGTERM or SIGINT sets `stop`: new requests are refused, running ones may finish.

    A second signal sets `hurry`, which ends running requests too. SIGHUP reads keys and certificate again; after the
    terminal was closed, SIGHUP counts as SIGTERM.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()

    def handle(self, key_sources: KeySources, certificate: Certificate | None) -> None:
        """Install the signal handlers in the running event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._count)
        reloader = Reloader(key_sources, certificate, self._count)
        loop.add_signal_handler(signal.SIGHUP, reloader.on_signal)

    def _count(self) -> None:
        if self.stop.is_set():
            self.hurry.set()
        self.stop.set()
