"""One rank of a test group: `python ring_worker.py MODE FD RANK NONCE WORLD DEADLINE COUNT SEED`.

Modes: `verify` runs COUNT random collectives against sums made by numpy alone and prints how many were wrong;
`endless` runs all-reduces until the ring ends them, then prints the type and the message of the error.
"""

import sys

import numpy as np
from numaserve.shm_comm import Ring, RingError


def contribution(seed: int, index: int, rank: int, count: int) -> np.ndarray:
    """Return what `rank` contributes: float32 of magnitudes far apart, so that the order of a sum shows."""
    rng = np.random.default_rng((seed, index, rank))
    return (rng.standard_normal(count) * 10.0 ** rng.integers(-4, 4, count)).astype(np.float32)


def serial_sum(parts: list[np.ndarray]) -> np.ndarray:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def one_is_wrong(ring: Ring, seed: int, index: int) -> bool:
    rng = np.random.default_rng((seed, index))
    count = int(2 ** rng.uniform(0, 14))
    parts = [contribution(seed, index, rank, count) for rank in range(ring.world_size)]
    mine = parts[ring.rank].copy()
    match rng.integers(0, 4):
        case 0:
            out = np.empty((ring.world_size, count), np.float32)
            ring.all_gather(mine, out)
            return out.tobytes() != b"".join(part.tobytes() for part in parts)
        case 1:
            root = int(rng.integers(0, ring.world_size))
            ring.broadcast(mine, root)
            return mine.tobytes() != parts[root].tobytes()
        case 2:
            ring.all_reduce(mine, one_shot_bytes=0)
        case _:
            ring.all_reduce(mine, one_shot_bytes=1 << 30)
    return mine.tobytes() != serial_sum(parts).tobytes()


def verify(ring: Ring, count: int, seed: int) -> int:
    wrong = sum(one_is_wrong(ring, seed, index) for index in range(count))
    ring.barrier()
    print(f"{wrong} wrong", flush=True)
    return 0


def endless(ring: Ring, deadline: float, seed: int) -> int:
    rng = np.random.default_rng(seed)
    ring.barrier()  # the processes start apart: the deadline of the test is for what comes after
    ring.set_deadline(deadline)
    print("running", flush=True)
    try:
        while True:
            ring.all_reduce(np.ones(int(2 ** rng.uniform(0, 15)), np.float32))
            ring.beat()
    except RingError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 3


def main() -> int:
    mode = sys.argv[1]
    fd, rank, nonce, world = (int(arg) for arg in sys.argv[2:6])
    ring = Ring(fd, rank, nonce, world)
    if rank % 2:  # how a rank waits changes no sum, and no end
        ring.share_cores()
    ring.prefault()
    if mode == "verify":
        return verify(ring, int(sys.argv[7]), int(sys.argv[8]))
    return endless(ring, float(sys.argv[6]), int(sys.argv[8]))


if __name__ == "__main__":
    sys.exit(main())
