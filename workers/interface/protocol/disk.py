"""Messages about the disk tier: cached pages that ranks keep in files, and that outlive them.

Each rank has two files of equal records, one of pages and one of anchors (see `Anchors`). The front end numbers the
records of each file, and the same number means the same prefix on every rank.

| who | does | when |
|---|---|---|
| front end | locks the page, sends `WriteRecords` | an answered step has shown the page to be sound |
| rank | copies the page, writes it, syncs, answers | the thread that runs steps passes it on between two plans |
| front end | unlocks the page, notes the record | all ranks have answered |
| front end | takes free pages, sends `ReadRecords` | a request waits for a prefix that is on disk |
| rank | reads, checks, copies to the pages, answers | likewise: plans that were sent before have run |
| front end | gives the pages to the radix tree | all ranks have answered: as many as every rank has |

A rank copies from and to pages until it has answered, and never after: `CancelMove` asks it to answer at once. So the
front end may give the pages to others when it has the answers, even if the disk hangs. A page that is written is full
and locked, hence nobody writes to it, and the copy need not be ordered against plans.
"""

from __future__ import annotations

from typing import Literal

import msgspec

DiskProblem = Literal["", "checksum", "replaced", "short", "io", "full", "cancelled"]


class DiskRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A record of the disk tier and the memory of the KV cache that it is copied from or to.

    A record of a page has a `page`. A record of an anchor has a `snapshot`, `tails` or both.
    """

    slot: int  # number of the record in its file
    digest: bytes  # of the prefix, 32 bytes; stored with the record
    page: int = -1  # of the common page table
    snapshot: int = -1
    tails: list[list[int]] = []  # pages of each window table

    @property
    def is_anchor(self) -> bool:
        """Whether it is in the file of anchors."""
        return self.page < 0


class WriteRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="write_records"):
    """Asks a rank to write records, in order."""

    request_id: int
    records: list[DiskRecord]


class ReadRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="read_records"):
    """Asks a rank to read records, in order, up to the first that is not as it was written."""

    request_id: int
    records: list[DiskRecord]


class CancelMove(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="cancel_move"):
    """Asks a rank to answer `WriteRecords` or `ReadRecords` now. Without effect where the answer has been sent."""

    request_id: int


class RecordsMoved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="records_moved"):
    """The answer of a rank to `WriteRecords` or `ReadRecords`."""

    rank: int
    request_id: int
    done: int  # the first `done` records are on disk and synced, or in memory
    problem: DiskProblem = ""  # of the record after these
    message: str = ""  # of the operating system
    nbytes: int = 0  # that were moved
    nanoseconds: int = 0  # from the first system call to the last


class DiskReady(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="disk_ready"):
    """The report of a rank that has opened its files and measured the disk, which may take a while after `Ready`."""

    rank: int
    page_bytes: int  # of a record
    anchor_bytes: int  # of a record; 0: every page is an anchor
    read_bytes_per_s: float
    problem: str = ""  # why the rank cannot use the files
