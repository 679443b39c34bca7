"""The connection from the scheduler's event log to the publisher."""

import asyncio

from numaserve.server.kv_events.publisher import Publisher
from numaserve.server.scheduler.cache.kv_events import KVEventLog


class KVFeed:
    """Publishes the events that each turn of the event loop adds to `log`, as one batch.

    A batch for each step was rejected: sequences also end between steps, and no step follows the last one before an
    idle time.
    """

    def __init__(self, log: KVEventLog, publisher: Publisher) -> None:
        self.log = log
        self._publisher = publisher
        log.changed = self._changed

    def close(self) -> None:
        """Stop publishing."""
        self.log.changed = lambda: None
        self._publisher.close()

    def _changed(self) -> None:
        asyncio.get_running_loop().call_soon(self._hand_on)

    def _hand_on(self) -> None:
        self._publisher.publish(self.log.take())
