"""What the server and the process of trials say to each other."""

import struct

import msgspec
from numaserve.server.structured.types import Limits
from numaserve.server.structured.vocabulary import Vocabulary

HEAD = struct.Struct("<Q")  # bytes of the answer's JSON, which follows
NOT_CONFINED = 3  # the exit status of a fork that could not give up what it must not have


class Settings(msgspec.Struct):
    """The first line that the process gets; the others are constraints."""

    vocabulary: Vocabulary
    limits: Limits


class Answer(msgspec.Struct, omit_defaults=True):
    """What became of a trial: a grammar, or why there is none."""

    grammar: str = ""  # in llguidance's form
    memory_bytes: int = 0  # that compiling it took
    mask_seconds: float = 0.0  # of processor time that the slowest of the first masks took
    refused: str = ""  # what is wrong with the constraint
    keyword: str | None = None  # of a schema, at fault
    too_slow: bool = False
    unavailable: str = ""  # why nothing can be tried on this machine
