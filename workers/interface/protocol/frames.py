"""The encoding of messages as frames."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from numaserve.workers.interface.protocol.adapters import AdapterLoaded, LoadAdapter
from numaserve.workers.interface.protocol.disk import CancelMove, DiskReady, ReadRecords, RecordsMoved, WriteRecords
from numaserve.workers.interface.protocol.launches import Failure, Launch, LoadProgress, Ready, Shutdown, WorkerStats
from numaserve.workers.interface.protocol.profiles import ProfileRequest, RankProfile
from numaserve.workers.interface.protocol.steps import StepPlan, StepResult

PROTOCOL_VERSION = 15


class ProtocolError(ValueError):
    """A frame that is not a message of this protocol version."""


ToDisk = WriteRecords | ReadRecords | CancelMove
FromDisk = RecordsMoved | DiskReady
ToWorker = Launch | StepPlan | ProfileRequest | LoadAdapter | ToDisk | Shutdown
FromWorker = LoadProgress | Ready | StepResult | WorkerStats | RankProfile | AdapterLoaded | FromDisk | Failure

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)

T = TypeVar("T")


def encode(message: ToWorker | FromWorker) -> bytes:
    """Return the frame of a message."""
    return bytes([PROTOCOL_VERSION]) + _encoder.encode(message)


def decode_to_worker(frame: bytes) -> ToWorker:
    """Decode a message to a worker. Raises `ProtocolError` for any other frame."""
    return _decode(_to_worker, frame)


def decode_from_worker(frame: bytes) -> FromWorker:
    """Decode a message from a worker. Raises `ProtocolError` for any other frame."""
    return _decode(_from_worker, frame)


def _decode(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T:
    if not frame or frame[0] != PROTOCOL_VERSION:
        raise ProtocolError(f"the frame is not of protocol version {PROTOCOL_VERSION}")
    try:
        return decoder.decode(memoryview(frame)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(str(error)) from error
