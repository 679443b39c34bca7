"""The counters of the disk tier."""

from collections import Counter
from dataclasses import dataclass, field

from numaserve.workers.interface.protocol import DiskProblem


@dataclass
class DiskCounts:
    """Counters since the start, for /metrics."""

    hits: int = 0  # sequences that waited for a prefix, and got at least a part of it
    hit_tokens: int = 0  # that were read and need not be computed; a prefix for several sequences counts once
    unpaid: int = 0  # sequences whose prefix was computed, as reading it would have taken longer
    problems: Counter[DiskProblem] = field(default_factory=Counter)
