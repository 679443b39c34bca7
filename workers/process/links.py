"""The links of a rank to the pipeline stages before and after its own, over which residual streams travel.

A rank sends its rows to the rank of the same number in the next stage. The rows are equal on all ranks of a stage, so
that no rank has to forward any.

A stage runs the plans in their order, and sends one message for each: the rows of the step, or, for a plan that it has
refused, none. The next stage then refuses the plan too, before it has changed anything.

A rank is ready when the next stage's rank has shown its key. So a launch never serves over a link that is down: its
first step would fail too, and the requests of that step would be taken for the cause.

Stages of one host have sockets in a folder of the front end, and stages of different hosts have encrypted links. The
key of the listening rank is new in each launch, and its public part reaches the rank before alone. So no other process
can open the link, not even a rank of an earlier launch.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import zmq
from numaserve.workers.interface.host_links import connect, joined, listen, new_keys, parse_address, parts_of
from numaserve.workers.interface.protocol import Launch
from numaserve.workers.program.outside import Rows

_HEADER = struct.Struct("<qq")  # step id; rows, or -1 for a plan that was refused
_REFUSED = -1
_LOOK_MS = 500  # time between two looks at the front end while a stage waits for rows
_FIRST_REPORT, _REPORTS = 4, 60  # looks before the first log line about a link that is not open, and between two lines
_MAX_WAITING = 8  # messages, more than plans are in flight

logger = logging.getLogger(__name__)


class RowsLost(Exception):
    """Raised when rows of the stage before are lost: this stage cannot go on."""


class StageLinks:
    """The sockets of one rank. `check` is called while it waits for rows, and raises if the front end is gone."""

    def __init__(self, launch: Launch, check: Callable[[], None]) -> None:
        self._check = check
        self._context = zmq.Context()
        self._from = self._socket(zmq.PULL) if launch.rows_from else None
        self._to = self._socket(zmq.PUSH) if launch.rows_to else None
        self._next = launch.rows_to
        self._opened = None if self._to is None else self._to.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        if self._from is not None:
            if launch.rows_secret:
                listen(self._from, parse_address(launch.rows_from), launch.rows_secret, launch.rows_fd)
            else:
                self._from.bind(launch.rows_from)
        if self._to is not None:
            if launch.rows_public:
                connect(self._to, parse_address(launch.rows_to), launch.rows_public, new_keys())
            else:
                self._to.connect(launch.rows_to)

    @property
    def is_first(self) -> bool:
        """Whether no stage is before this one."""
        return self._from is None

    @property
    def is_last(self) -> bool:
        """Whether no stage is after this one."""
        return self._to is None

    def open(self, waiting: Callable[[], None]) -> None:
        """Wait until the link to the next stage is open, if there is one. `waiting` is called twice a second."""
        if self._to is None or self._opened is None:
            return
        looks = 0
        while not self._opened.poll(_LOOK_MS):
            self._check()
            waiting()
            looks += 1
            if looks % _REPORTS == _FIRST_REPORT:
                logger.warning(
                    "no connection to the next stage at %s; trying until there is one. Open the port to this host",
                    self._next,
                )
        self._to.disable_monitor()
        self._opened.close()
        self._opened = None

    def receive(self, step_id: int, out: Rows) -> None:
        """Wait for the rows of a step, and write them to `out`, fp32 [tokens, columns].

        Raises `ValueError` for a plan that the stage before has refused, and for rows of another shape. Raises
        `RowsLost` for rows of another step: the connection broke, ZeroMQ has connected again, and rows on their way are
        gone. The end of a connection was rejected as a sign: strangers open and close connections too.
        """
        assert self._from is not None  # noqa: S101
        while not self._from.poll(_LOOK_MS):
            self._check()
        header, *parts = self._from.recv_multipart(copy=False)
        step, rows = _HEADER.unpack(header.bytes)
        if step != step_id:
            raise RowsLost(f"the stage before has sent rows of step {step} for step {step_id}")
        if rows == _REFUSED:
            raise ValueError("the stage before has refused the step")
        payload = joined([part.buffer for part in parts])
        if rows != len(out) or len(payload) != out.nbytes:
            raise ValueError(f"the stage before has sent {rows} rows for {len(out)} tokens")
        out[:] = np.frombuffer(payload, out.dtype).reshape(out.shape)

    def send(self, step_id: int, rows: npt.NDArray[np.float32]) -> None:
        """Send the rows of a step, fp32 [tokens, columns], to the next stage."""
        self._send(step_id, len(rows), rows.tobytes())

    def refuse(self, step_id: int) -> None:
        """Report to the next stage, if there is one, that this one has refused a plan."""
        if self._to is not None:
            self._send(step_id, _REFUSED, b"")

    def close(self) -> None:
        """Close the sockets. Rows that were not sent are dropped."""
        self._context.destroy(linger=0)

    def _send(self, step_id: int, rows: int, payload: bytes) -> None:
        assert self._to is not None  # noqa: S101
        self._to.send_multipart([_HEADER.pack(step_id, rows), *parts_of(payload)], copy=False)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, _MAX_WAITING)
        socket.setsockopt(zmq.RCVHWM, _MAX_WAITING)
        return socket
