"""ZMTP 3.0, the protocol of ZeroMQ's sockets, for the listening side: bytes in, frames out.

libzmq was rejected. It keeps an unlimited number of subscriptions of a peer, and reads all input before its caller
could count it: 70 MB of subscriptions became 3.3 GiB. libzmq in a separate process was rejected too. When one peer
kills that process, all others lose their connection, and must get the batches that they request again.
"""

from collections.abc import Iterator
from typing import NamedTuple

MAX_FRAME = 1024  # bytes that a peer may send at once: topics, numbers of batches, its handshake
_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT = 255  # longest frame with a size of one byte
_MECHANISM = b"NULL".ljust(20, b"\0")
_GREETING_BYTES = 64
# Signature, version, mechanism, as-server and filler.
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + _MECHANISM + bytes(32)


class Violation(Exception):
    """A violation of the protocol by a peer; the message is for the log."""


class Frame(NamedTuple):
    """A part of a message, or a command."""

    body: bytes
    more: bool  # parts follow
    command: bool


class Decoder:
    """Parses a peer's greeting and then its frames. Holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._greeted = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete with `data`. Raises `Violation`."""
        self._buffer += data
        if not self._greeted:
            if len(self._buffer) < _GREETING_BYTES:
                return
            _check_greeting(self._take(0, _GREETING_BYTES))
            self._greeted = True
        while (frame := self._frame()) is not None:
            yield frame

    def _frame(self) -> Frame | None:
        buffer = self._buffer
        head = 9 if buffer and buffer[0] & _LONG else 2
        if len(buffer) < head:
            return None
        flags, size = buffer[0], int.from_bytes(buffer[1:head], "big")
        if flags & ~(_MORE | _LONG | _COMMAND) or size > MAX_FRAME:
            raise Violation(f"the reader sent a frame of {size} bytes with flags {flags} (limit {MAX_FRAME} bytes)")
        if len(buffer) < head + size:
            return None
        return Frame(self._take(head, head + size), bool(flags & _MORE), bool(flags & _COMMAND))

    def _take(self, begin: int, end: int) -> bytes:
        taken = bytes(self._buffer[begin:end])
        del self._buffer[:end]
        return taken


def message(*frames: bytes) -> list[memoryview]:
    """Return the bytes of a message, the last frame's separately: it is not copied."""
    parts = [part for index, frame in enumerate(frames) for part in (_head(frame, index + 1 < len(frames)), frame)]
    return [memoryview(part) for part in (b"".join(parts[:-1]), parts[-1]) if part]


def command(name: bytes, body: bytes) -> list[memoryview]:
    """Return the bytes of a short command."""
    content = _counted(name) + body
    return [memoryview(bytes((_COMMAND, len(content))) + content)]


def ready(socket_type: bytes) -> list[memoryview]:
    """Return the command that ends the handshake."""
    properties = {b"Socket-Type": socket_type, b"Identity": b""}
    body = b"".join(_counted(name) + len(value).to_bytes(4, "big") + value for name, value in properties.items())
    return command(b"READY", body)


def socket_type_in(frame: Frame) -> bytes:
    """Return the type of the peer's socket, from its READY command. Raises `Violation` for any other frame."""
    name, rest = split_command(frame)
    if name != b"READY":
        raise Violation("the reader's handshake does not end with READY")
    while rest:
        key_end = 1 + rest[0]
        value_begin = key_end + 4
        value_end = value_begin + int.from_bytes(rest[key_end:value_begin], "big")
        if rest[1:key_end].lower() == b"socket-type":
            return rest[value_begin:value_end]
        rest = rest[value_end:]
    raise Violation("the reader's READY command has no socket type")


def split_command(frame: Frame) -> tuple[bytes, bytes]:
    """Return the name of a command and its body; the name is empty for a frame that is no command."""
    if not frame.command or not frame.body:
        return b"", frame.body
    end = 1 + frame.body[0]
    return frame.body[1:end], frame.body[end:]


def _head(frame: bytes, more: bool) -> bytes:
    if len(frame) <= _SHORT:
        return bytes((_MORE * more, len(frame)))
    return bytes((_MORE * more | _LONG,)) + len(frame).to_bytes(8, "big")


def _counted(name: bytes) -> bytes:
    return bytes((len(name),)) + name


def _check_greeting(greeting: bytes) -> None:
    if greeting[0] != 0xFF or not greeting[9] & 1 or greeting[10] < 3:  # libzmq 3 and older: below ZMTP 3
        raise Violation("the reader does not speak ZMTP 3")
    if greeting[12:32] != _MECHANISM:
        raise Violation("the reader requires a security mechanism other than NULL")
