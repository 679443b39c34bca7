"""The front ends that an agent accepts, and the handler by which ZeroMQ asks for them (ZAP, RFC 27/ZeroMQ)."""

from __future__ import annotations

import logging
from pathlib import Path

import zmq
from numaserve.server.common.secret_file import check_unchanged
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import SETTINGS_BYTES, read_text
from numaserve.workers.interface.host_links import parse_public_key, public_text

_ENDPOINT = "inproc://zeromq.zap.01"
_KEY_BYTES = 32

_log = logging.getLogger(__name__)


def read_front_ends(file: Path) -> frozenset[str]:
    """Return the public keys in a file, one on a line; text after `#` is a comment. Raises `OperatorError`."""
    check_unchanged(file, "file of front ends")
    keys = set()
    for number, line in enumerate(read_text(file, SETTINGS_BYTES).splitlines(), 1):
        if text := line.partition("#")[0].strip():
            try:
                keys.add(parse_public_key(text))
            except ValueError as error:
                raise OperatorError(f"{file}, line {number}: the key {error}") from None
    if not keys:
        raise OperatorError(f"{file} has no key: add the public key of each front end that may use this agent")
    return frozenset(keys)


class FrontEnds:
    """The allow list. The file is read for each connection, so that a key can be added or removed at any time.

    A connection is asked about only after its peer has shown that it knows the public key of this agent.
    """

    def __init__(self, file: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._file = file
        read_front_ends(file)
        self.socket = context.socket(zmq.REP)
        self.socket.bind(_ENDPOINT)

    def answer(self) -> None:
        """Answer all requests of ZeroMQ that wait."""
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            version, request, _, address, _, mechanism, *credentials = self.socket.recv_multipart()
            key = credentials[0] if mechanism == b"CURVE" and credentials else b""
            text = public_text(key) if len(key) == _KEY_BYTES else ""
            allowed = text in self._keys()
            if not allowed:
                _log.warning("refused a connection from %s with the key %s", address.decode(), text or "none")
            status = [b"200", b"OK", text.encode()] if allowed else [b"400", b"unknown key", b""]
            self.socket.send_multipart([version, request, *status, b""])

    def _keys(self) -> frozenset[str]:
        try:
            return read_front_ends(self._file)
        except OperatorError as error:
            _log.error("%s", error)
            return frozenset()
