"""The shared memory of a group: the ring through which its ranks synchronise, which `segment` makes, and the board of
`mask_board`, through which the front end gives rank 0 the tokens that constrained sequences may have."""

from numaserve.shm_comm._ring import Board, Ring, RingAborted, RingDeadline, RingError

__all__ = ["Board", "Ring", "RingAborted", "RingDeadline", "RingError"]
