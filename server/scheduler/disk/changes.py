"""Changes of the directories of the disk tier, which its index keeps."""

from typing import Literal, NamedTuple

from numaserve.server.scheduler.disk.directory import Entry

RecordKind = Literal["pages", "anchors"]
RECORD_KINDS: tuple[RecordKind, ...] = ("pages", "anchors")


class Added(NamedTuple):
    """A node whose record every rank has written and synced."""

    kind: RecordKind
    entry: Entry


class Dropped(NamedTuple):
    """A node that is not on disk any more. A node that is added to its slot drops it too."""

    kind: RecordKind
    digest: bytes


class Used(NamedTuple):
    """A path that was used. Only its last node is named: the nodes before it were used no earlier."""

    kind: RecordKind
    digest: bytes
    at: int  # unix seconds


class Cleared(NamedTuple):
    """No node is on disk any more."""


Change = Added | Dropped | Used | Cleared
