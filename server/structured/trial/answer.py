"""The messages between the server and the process of sandboxed compiles."""

import struct

import msgspec
from numaserve.server.structured.types import Limits
from numaserve.server.structured.vocabulary import Vocabulary

HEAD = struct.Struct("<Q")  # number of bytes of the answer's JSON, which follows
NOT_CONFINED = 3  # the exit status of a fork that could not confine itself


class Settings(msgspec.Struct):
    """The first line of the process's input; the other lines are constraints."""

    vocabulary: Vocabulary
    limits: Limits


class Answer(msgspec.Struct, omit_defaults=True):
    """The result of a sandboxed compile: a grammar, or the reason why there is none."""

    grammar: str = ""  # in llguidance's form
    memory_bytes: int = 0  # used by the compilation
    mask_seconds: float = 0.0  # CPU time of the slowest of the first masks
    refused: str = ""  # the fault of the constraint
    keyword: str | None = None  # the schema's keyword at fault
    too_slow: bool = False
    unavailable: str = ""  # the reason why this machine cannot run sandboxed compiles
