"""The shared-memory ring through which the ranks of a group synchronise."""

from numaserve.shm_comm._ring import Ring, RingAborted, RingDeadline, RingError
from numaserve.shm_comm.segment import Segment, create_segment

__all__ = ["Ring", "RingAborted", "RingDeadline", "RingError", "Segment", "create_segment"]
