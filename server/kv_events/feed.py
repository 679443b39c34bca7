"""What takes the scheduler's events to where they are published."""

import asyncio

from numaserve.server.kv_events.publisher import Publisher
from numaserve.server.scheduler.cache.kv_events import KVEventLog


class KVFeed:
    """Hands on what each turn of the event loop adds to `log`, as one batch.

    Not each step's: sequences end between steps too, and the last one before a rest is followed by none.
    """

    def __init__(self, log: KVEventLog, publisher: Publisher) -> None:
        self.log = log
        self._publisher = publisher
        log.changed = self._changed

    def close(self) -> None:
        """Publish no more."""
        self.log.changed = lambda: None
        self._publisher.close()

    def _changed(self) -> None:
        asyncio.get_running_loop().call_soon(self._hand_on)

    def _hand_on(self) -> None:
        self._publisher.publish(self.log.take())
