"""The shared-memory ring through which the ranks of a group synchronise. `segment` makes one."""

from numaserve.shm_comm._ring import Ring, RingAborted, RingDeadline, RingError

__all__ = ["Ring", "RingAborted", "RingDeadline", "RingError"]
