"""The shared memory of one launch of a worker group: its ring, its mask board and its progress board."""

from collections.abc import Sequence

from numaserve.server.supervisor.cpu_time import ThreadTime
from numaserve.server.supervisor.judge import RankLook
from numaserve.server.supervisor.memory import (
    BoardFactory,
    MaskBoard,
    ProgressBoard,
    ProgressFactory,
    RingFactory,
    RingSegment,
)
from numaserve.workers.interface.protocol import Launch


class GroupMemory:
    """The memory that the factories make; none for a factory that is None. Only several ranks have a ring.

    There is no memory before `create` and after `close`.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        ring: RingFactory | None,
        board: BoardFactory | None,
        progress: ProgressFactory | None,
    ) -> None:
        self._threads = [len(each.cpus[each.rank]) for each in launches]
        self._factories = ring if len(launches) > 1 else None, board, progress
        self._ring: RingSegment | None = None
        self.board: MaskBoard | None = None
        self._progress: ProgressBoard | None = None

    def create(self) -> dict[str, int]:
        """Create the memory, and return the fields of the launch message. Raises `OSError`; `close` must be called
        afterwards in any case."""
        ring, board, progress = self._factories
        self._ring = ring() if ring else None
        self.board = board() if board else None
        self._progress = progress() if progress else None
        fields: dict[str, int] = {}
        for name, each in (("ring", self._ring), ("mask", self.board), ("progress", self._progress)):
            fields |= {f"{name}_fd": each.fd if each else -1, f"{name}_nonce": each.nonce if each else 0}
        return fields

    @property
    def fds(self) -> list[int]:
        """The descriptors that each worker inherits."""
        return [each.fd for each in (self._ring, self.board, self._progress) if each]

    def abort_ring(self, reason: str) -> None:
        """End every wait in the ring with an error."""
        if self._ring is not None:
            self._ring.abort(reason)

    def progress_of(self, rank: int, times: dict[int, ThreadTime]) -> RankLook:
        """Return a look at a rank, whose threads have such processor times."""
        if self._progress is None:
            return RankLook(threads=times)
        waiting = self._progress.waiting(rank, self._threads[rank])
        return RankLook(self._progress.barriers(rank), waiting, times)

    def close(self) -> None:
        """Close the memory. May be called twice."""
        for each in (self._ring, self.board, self._progress):
            if each is not None:
                each.close()
        self._ring = self.board = self._progress = None
