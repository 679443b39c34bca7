"""The shared memory of a group: the ring through which its ranks synchronise, which `segment` makes, the board of
`mask_board`, through which the front end gives rank 0 the tokens that constrained sequences may have, and the board of
`progress_board`, in which ranks show that they progress."""

from numaserve.shm_comm._ring import Board, Progress, Ring, RingAborted, RingDeadline, RingError

__all__ = ["Board", "Progress", "Ring", "RingAborted", "RingDeadline", "RingError"]
