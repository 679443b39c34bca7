"""The figures of the disk tier, for /metrics, /server_info and GET /machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from numaserve.server.metrics.labels import DiskDirection, DiskProblemKind, DiskRecordKind, DiskTierState


@dataclass(frozen=True)
class DiskRecords:
    """The records of one kind. Bytes are those of all ranks."""

    number: int = 0
    most: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class DiskMoved:
    """Transfers in one direction since the start."""

    nbytes: int = 0  # of all ranks
    seconds: float = 0.0  # of the slowest rank of each transfer


@dataclass(frozen=True)
class DiskFigures:
    """The current state of the tier, and its counters since the start."""

    state: DiskTierState = "opening"
    off_reason: str = ""  # empty: it is not off
    limit_bytes: int = 0
    read_bytes_per_s: float = 0.0  # of the slowest rank; 0: nothing is read
    records: Mapping[DiskRecordKind, DiskRecords] = field(default_factory=dict)  # of the kinds that the model has
    moved: Mapping[DiskDirection, DiskMoved] = field(default_factory=dict)
    hits: int = 0
    hit_tokens: int = 0
    unpaid: int = 0
    problems: Mapping[DiskProblemKind, int] = field(default_factory=dict)
