"""Rates of the disk tier as a fraction of the disk's own.

python -m tests.bench.bench_disk [FOLDER] [--mib 64] [--rounds 15]

Pages of 1 MiB and of 64 KiB are written and read by the tier of a rank, in order and in a random order. Alternately, a
file is written and read by plain calls past the page cache, by as many threads of the same priority. In order these
calls are of 1 MiB, in a random order of a record. The medians of the rounds and of their ratios are printed. Nothing is
left in the folder.
"""

import argparse
import hashlib
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from operator import truediv
from pathlib import Path

import numpy as np
from numaserve.workers.interface.protocol import (
    DiskReady,
    DiskRecord,
    ReadRecords,
    RecordsMoved,
    WriteRecords,
)
from numaserve.workers.kv_disk.memory import CacheMemory, Pieces
from numaserve.workers.kv_disk.tier import DiskTier

from tests.support.disk_answers import DiskAnswers
from tests.support.plain_file import PlainFile

PAGE_BYTES = (1 << 20, 64 << 10)
LAYERS = 16
CALL_BYTES = 1 << 20


class TierRates:
    """A tier whose caches have `total` bytes, in pages of `page_bytes`."""

    def __init__(self, folder: Path, page_bytes: int, total: int) -> None:
        self.num_pages = total // page_bytes
        self._memory = np.random.default_rng(0).integers(0, 256, (LAYERS, total // LAYERS), np.uint8)
        layers = [Pieces.of((layer.ctypes.data, layer.nbytes), self.num_pages) for layer in self._memory]
        answers = DiskAnswers()
        self._tier = DiskTier(0, folder, CacheMemory(layers, [], []), cpus=[], steps=lambda: 0, wake=answers.wake)
        self._answer = partial(answers.next, self._tier)
        ready = self._answer()
        assert isinstance(ready, DiskReady), ready
        assert not ready.problem, ready
        self.record_bytes = ready.page_bytes
        self._requests = iter(range(1 << 30))

    def write(self, slots: Sequence[int]) -> float:
        """Bytes per second of records that are written and synced."""
        return self._rate(WriteRecords(next(self._requests), self._records(slots)))

    def read(self, slots: Sequence[int]) -> float:
        """Bytes per second of records that are read and verified."""
        return self._rate(ReadRecords(next(self._requests), self._records(slots)))

    def close(self) -> None:
        """End the threads."""
        self._tier.close()

    def _records(self, slots: Sequence[int]) -> list[DiskRecord]:
        return [DiskRecord(slot, hashlib.sha256(b"%d" % slot).digest(), page) for page, slot in enumerate(slots)]

    def _rate(self, message: ReadRecords | WriteRecords) -> float:
        begin = time.monotonic()
        self._tier.begin(message)
        answer = self._answer()
        assert isinstance(answer, RecordsMoved), answer
        assert answer.done == len(message.records), answer
        return answer.nbytes / (time.monotonic() - begin)


def compare(folder: Path, page_bytes: int, total: int, rounds: int, *, in_order: bool) -> None:
    """Print the rates of one size of pages."""
    tier, plain = TierRates(folder, page_bytes, total), PlainFile(folder / "plain")
    size = max(CALL_BYTES, tier.record_bytes) if in_order else tier.record_bytes
    slots, offsets = [*range(tier.num_pages)], [*range(0, tier.num_pages * tier.record_bytes - size + 1, size)]
    tier.write(slots)
    plain.write(offsets, size)
    for kind in ("read", "write"):
        rates: dict[str, list[float]] = {"tier": [], "plain": []}
        for number in range(rounds):
            if not in_order:
                random.Random(number).shuffle(slots)
                random.Random(number).shuffle(offsets)
            calls = {"tier": partial(getattr(tier, kind), slots), "plain": partial(getattr(plain, kind), offsets, size)}
            for name in sorted(calls, reverse=number % 2 == 0):
                rates[name].append(calls[name]())
        ratio = statistics.median(map(truediv, rates["tier"], rates["plain"]))
        row = f"{page_bytes >> 10:5} KiB {'in order' if in_order else 'random':>8} {kind:>5}"
        own, other = (statistics.median(each) / 1e9 for each in rates.values())
        print(f"{row}  tier {own:5.2f} GB/s  plain calls {other:5.2f} GB/s  ratio {ratio:4.2f}")
    tier.close()
    plain.close()


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path.cwd(), help="on the disk to measure")
    parser.add_argument("--mib", type=int, default=64, help="bytes of a round")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    for page_bytes in PAGE_BYTES:
        for in_order in (True, False):
            with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="numaserve-disk-") as folder:
                compare(Path(folder), page_bytes, arguments.mib << 20, arguments.rounds, in_order=in_order)


if __name__ == "__main__":
    main()
