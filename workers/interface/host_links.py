"""The links between hosts: ZeroMQ over TCP, encrypted and authenticated by CurveZMQ (RFC 26/ZeroMQ).

No other module makes such links. Each link has the keys of both ends before it is opened, so that none is ever open to
others. A listener reads at most `PART_BYTES` at a time from a peer that has not shown its key yet, for `_HANDSHAKE_MS`.
Longer messages therefore have several parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import zmq
import zmq.utils.z85
from numaserve.workers.interface.errors import OperatorError

PART_BYTES = 1 << 20
_OVERHEAD_BYTES = 1 << 10  # of encryption, above the bytes of a part
_HANDSHAKE_MS = 2000
_KEY = re.compile(r"(secret|public)-([0-9a-f]{64})")
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5})")


class KeyPair(NamedTuple):
    """The keys of one end, as text: `public-` or `secret-`, and 64 hexadecimal digits."""

    public: str
    secret: str


class Address(NamedTuple):
    """A host's name or address, in brackets for IPv6, and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def check_curve() -> None:
    """Raise `OperatorError` where the installed libzmq cannot encrypt."""
    if not zmq.has("curve"):
        raise OperatorError(
            f"links between hosts need CURVE, which libzmq {zmq.zmq_version()} was built without: install pyzmq"
            " from its wheel with `pip install --force-reinstall --only-binary pyzmq pyzmq`"
        )


def new_keys() -> KeyPair:
    """Return a new pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(_text("public", public), _text("secret", secret))


def keys_of(secret: str) -> KeyPair:
    """Return the pair of a secret key. Raises `ValueError`."""
    return KeyPair(_text("public", zmq.curve_public(_z85("secret", secret))), secret)


def parse_public_key(text: str) -> str:
    """Return a public key. Raises `ValueError` for any other text."""
    _z85("public", text)
    return text


def is_secret_key(text: object) -> bool:
    """Return whether a value looks like a secret key, which no message may repeat."""
    return isinstance(text, str) and text.startswith("secret-")


def public_text(raw: bytes) -> str:
    """Return the text of a public key of 32 bytes."""
    return f"public-{raw.hex()}"


def parse_address(text: str) -> Address:
    """Return the address that `text` spells as HOST:PORT. Raises `ValueError`."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ValueError("must be HOST:PORT, such as 10.0.0.2:7000 or [fd00::2]:7000")
    return Address(found["host"], int(found["port"]))


def listen(socket: zmq.Socket[bytes], address: Address, secret: str, fd: int = -1) -> None:
    """Accept peers that know the public key of `secret`, at `address`; `fd` is a socket that listens there already.

    Raises `zmq.ZMQError`.
    """
    socket.curve_server = True
    socket.curve_secretkey = _z85("secret", secret)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    if fd >= 0:
        socket.setsockopt(zmq.USE_FD, fd)
    socket.bind(_endpoint(socket, address))


def connect(socket: zmq.Socket[bytes], address: Address, server: str, keys: KeyPair) -> None:
    """Connect to the peer at `address` whose public key is `server`, as the owner of `keys`. A peer that is not there
    yet is tried again until the socket is closed."""
    socket.curve_serverkey = _z85("public", server)
    socket.curve_publickey = _z85("public", keys.public)
    socket.curve_secretkey = _z85("secret", keys.secret)
    socket.connect(_endpoint(socket, address))


def parts_of(payload: bytes | memoryview) -> Iterator[memoryview]:
    """Yield the parts of a message; one even if it is empty."""
    view = memoryview(payload)
    for begin in range(0, max(len(view), 1), PART_BYTES):
        yield view[begin : begin + PART_BYTES]


def joined(parts: Sequence[bytes | memoryview]) -> bytes | memoryview:
    """Return the message of `parts`."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _endpoint(socket: zmq.Socket[bytes], address: Address) -> str:
    socket.setsockopt(zmq.MAXMSGSIZE, PART_BYTES + _OVERHEAD_BYTES)
    socket.setsockopt(zmq.IPV6, address.host.startswith("["))
    return f"tcp://{address}"


def _text(kind: str, z85: bytes) -> str:
    return f"{kind}-{zmq.utils.z85.decode(z85).hex()}"


def _z85(kind: str, text: str) -> bytes:
    """Return a key in the form of libzmq. Raises `ValueError` for another kind of key, and for no key."""
    found = _KEY.fullmatch(text)
    if found is None or found[1] != kind:
        # The message does not repeat the text, which may be secret.
        raise ValueError(f"must be {kind}- and 64 hexadecimal digits, as `numaserve agent --new-key` makes them")
    encoded: bytes = zmq.utils.z85.encode(bytes.fromhex(found[2]))
    return encoded
