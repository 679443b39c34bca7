"""The messages between a front end and an agent, which runs the workers of one pipeline stage on another host.

A message has two frames or more: the version of numaserve, and the parts of a msgpack struct. Only the version is read
of a peer with another version, and the answer to it is the version alone. Messages to and from workers are passed on as
they are. Every other field is typed, unknown fields are refused, and nothing is ever unpickled.

| front end | agent |
|---|---|
| `Describe` | `Working` each second, then `Described` |
| `Claim` | ends the launch before, listens for rows, `Claimed` |
| `StartStage` | starts the workers, passes their messages on, `Started` |
| messages to workers, `Mask` | passes them on |
| `Beat` twice a second | `Beaten`; without beats it ends the launch |
| `End` | ends the launch, `Ended` |

The agent answers `Failed` when the workers have failed, and `Refused` to what it cannot do.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
from numaserve.server.common.death import DeathReason
from numaserve.server.common.version import built_commit, installed_version
from numaserve.server.supervisor.judge import RankLook
from numaserve.workers.interface.host_links import Address, joined, parts_of
from numaserve.workers.interface.protocol import FromWorker, Launch, ProfileRequest, ProtocolError, StepPlan

BEAT_S = 0.5  # between two beats
LOST_S = 5.0  # time without a message after which one end gives the other up
MAX_RANKS = 64
MAX_MESSAGE_BYTES = 256 << 20  # as for the messages of workers


class Describe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="describe"):
    """Asks for a description of the host, with the digest of a checkpoint."""

    model: str  # a folder or a .gguf file of the agent's host


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="claim"):
    """Takes the agent for one launch. A launch before of the same front end ends."""

    ranks: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]  # that listen for rows


class StartStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="start"):
    """Starts the workers of a stage."""

    launches: list[Launch]
    ring_lanes: int
    ring_slot_bytes: int
    mask_rows: int  # 0: no mask board
    vocabulary: int  # of the mask board


class Mask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="mask"):
    """A row of the mask board, see `MaskBoard.publish`."""

    step: int
    row: int
    state: int
    bits: bytes  # empty where the state needs none


class Beat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="beat"):
    """Shows that the front end is there, and asks for a look at the ranks."""

    with_times: bool


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="end"):
    """Ends the launch. Workers get `grace_s` seconds to exit by themselves."""

    grace_s: Annotated[float, msgspec.Meta(ge=0, le=86400)]


class Working(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="working"):
    """Shows that the answer to `Describe` is being made."""


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="described"):
    """The host of the agent."""

    isa: str
    topology: msgspec.Raw  # `Topology`
    digest: bytes  # of the checkpoint


class Claimed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="claimed"):
    """The agent is taken."""

    ports: list[int]  # where its ranks listen for rows


class Started(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="started"):
    """All ranks are ready."""

    pids: list[int]


class Loaded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="loaded"):
    """The progress of loading, in bytes of packed weights."""

    done: int
    total: int


class Beaten(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="beaten"):
    """A look at each rank that runs."""

    looks: dict[int, RankLook]


class Failed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="failed"):
    """The workers have failed, or could not be started."""

    reason: DeathReason
    message: str


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="refused"):
    """The agent cannot do what it was asked to."""

    message: str


class Ended(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ended"):
    """All processes of the launch have ended."""


ToWorkers = StepPlan | ProfileRequest
ToAgent = Describe | Claim | StartStage | ToWorkers | Mask | Beat | End
FromAgent = Working | Described | Claimed | Started | Loaded | FromWorker | Beaten | Failed | Refused | Ended

_encoder = msgspec.msgpack.Encoder()
_to_agent: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)
_from_agent: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)

T = TypeVar("T")


class OtherVersion(Exception):
    """The message is from another version of numaserve, which is the argument."""


@functools.cache
def own_version() -> str:
    """Return the version of this numaserve, with the commit of its build."""
    return f"{installed_version()} ({built_commit()})"


def other_version(agent: Address, other: OtherVersion) -> str:
    """Return the message that an agent is of another version."""
    return (
        f"the agent at {agent} runs numaserve {other}, and this front end {own_version()}: install the same version on"
        " both hosts"
    )


def encode_message(message: ToAgent | FromAgent) -> list[bytes | memoryview]:
    """Return the frames of a message."""
    return [own_version().encode(), *parts_of(_encoder.encode(message))]


def decode_to_agent(frames: Sequence[bytes]) -> ToAgent:
    """Decode a message to an agent. Raises `OtherVersion`, and `ProtocolError` for anything but a message."""
    return _decode(_to_agent, frames)


def decode_from_agent(frames: Sequence[bytes]) -> FromAgent:
    """Decode a message from an agent. Raises as `decode_to_agent` does."""
    return _decode(_from_agent, frames)


def _decode(decoder: msgspec.msgpack.Decoder[T], frames: Sequence[bytes]) -> T:
    version, *parts = frames
    if version != own_version().encode():
        raise OtherVersion(version[:80].decode(errors="backslashreplace"))
    if not parts or sum(map(len, parts)) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"the message has no content, or more than {MAX_MESSAGE_BYTES >> 20} MiB")
    try:
        return decoder.decode(joined(parts))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(str(error)) from error
