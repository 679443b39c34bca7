"""The shared memory of a group: the ring through which its ranks synchronise, which `segment` makes, and the board of
`mask_board`, on which the front end tells rank 0 which tokens constrained sequences may have."""

from numaserve.shm_comm._ring import Board, Ring, RingAborted, RingDeadline, RingError

__all__ = ["Board", "Ring", "RingAborted", "RingDeadline", "RingError"]
