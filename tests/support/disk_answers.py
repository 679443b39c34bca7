"""The answers of a rank's disk tier to one who waits for them."""

import threading
import time

from numaserve.workers.interface.protocol import FromDisk
from numaserve.workers.kv_disk.tier import DiskTier

PATIENCE_S = 60


class DiskAnswers:
    """Waits until a tier wakes it, which is made with `wake`."""

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.wake = self._woken.set

    def next(self, tier: DiskTier) -> FromDisk:
        """The next answer, which is the only one that is there."""
        end = time.monotonic() + PATIENCE_S
        while not (answers := tier.answers()):
            assert self._woken.wait(end - time.monotonic())
            self._woken.clear()
        (answer,) = answers
        return answer
