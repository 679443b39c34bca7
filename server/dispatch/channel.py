"""One PAIR socket per rank: plans go out, answers come in as callbacks of the event loop.

The sockets are driven by their file descriptors instead of ``zmq.asyncio``. Its futures cost more per message than all
other work of the front end for a step of one sequence.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import zmq
from numaserve.server.dispatch.directory import SocketDirectory
from numaserve.workers.interface.protocol import FromWorker, ProtocolError, ToWorker, decode_from_worker, encode

logger = logging.getLogger(__name__)

# An echo of a whole context with 20 alternatives per token is the largest answer; it is far smaller.
MAX_FRAME_BYTES = 256 << 20
# At most two plans are in flight, so that many frames waiting for a worker means it does not read.
MAX_PENDING_FRAMES = 64
# Garbage is logged for the first frames only: a broken peer must not fill the disk.
_LOGGED_GARBAGE = 10

OnMessage = Callable[[FromWorker], None]


class WorkerGroupChannel:
    """The sockets of one worker group, bound in a new directory of mode 0700.

    `on_message` is called in the event loop for every valid message, whose `rank` is the rank of its socket. Any other
    frame is counted in `garbage_frames`, logged and dropped. Must be constructed inside a running event loop. Raises
    `OperatorError` when there is no directory for the sockets.
    """

    def __init__(self, world_size: int, on_message: OnMessage) -> None:
        self.world_size = world_size
        self.garbage_frames = 0
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._directory = SocketDirectory(world_size)
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._pending: list[deque[bytes]] = [deque() for _ in range(world_size)]
        self._closed = False
        try:
            for rank in range(world_size):
                self._bind(rank)
        except zmq.ZMQError:
            self.close()
            raise

    def endpoint(self, rank: int) -> str:
        """Return the address that the worker of `rank` connects to."""
        return f"ipc://{self._directory.path}/rank{rank}.sock"

    def send(self, rank: int, message: ToWorker) -> None:
        """Send a message to one worker; the message waits in memory until the worker has connected."""
        self._send_frame(rank, encode(message))

    def broadcast(self, message: ToWorker) -> None:
        """Send the same bytes to every worker."""
        frame = encode(message)
        for rank in range(self.world_size):
            self._send_frame(rank, frame)

    def close(self) -> None:
        """Close the sockets and remove the directory. Waiting frames are dropped."""
        if self._closed:
            return
        self._closed = True
        for socket in self._sockets:
            self._loop.remove_reader(_descriptor(socket))
            socket.close(linger=0)
        self._context.term()
        self._directory.remove()

    def _bind(self, rank: int) -> None:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self._sockets.append(socket)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.bind(self.endpoint(rank))
        self._loop.add_reader(_descriptor(socket), self._on_event, rank)

    def _send_frame(self, rank: int, frame: bytes) -> None:
        pending = self._pending[rank]
        if len(pending) >= MAX_PENDING_FRAMES:
            logger.error("worker %d does not read its messages; dropped a message to it", rank)
            return
        pending.append(frame)
        self._flush(rank)
        # Sending may swallow the edge that announces a received message (zmq_getsockopt(3), ZMQ_FD): check again.
        if self._events(rank) & zmq.POLLIN:
            self._loop.call_soon(self._on_event, rank)

    def _flush(self, rank: int) -> None:
        pending = self._pending[rank]
        try:
            while pending:
                self._sockets[rank].send(pending[0], zmq.NOBLOCK)
                pending.popleft()
        except zmq.Again:
            pass  # not connected yet; the connection will make the descriptor readable

    def _events(self, rank: int) -> int:
        return int(self._sockets[rank].getsockopt(zmq.EVENTS))

    def _on_event(self, rank: int) -> None:
        # The descriptor is edge-triggered, so everything is read until the socket is empty.
        while not self._closed:
            events = self._events(rank)
            if self._pending[rank] and events & zmq.POLLOUT:
                self._flush(rank)
            if not events & zmq.POLLIN:
                return
            self._receive(rank)

    def _receive(self, rank: int) -> None:
        frames = self._sockets[rank].recv_multipart(zmq.NOBLOCK)
        try:
            if len(frames) != 1:
                raise ProtocolError(f"it has {len(frames)} frames instead of 1")
            message = decode_from_worker(frames[0])
            if message.rank != rank:
                raise ProtocolError(f"the message names rank {message.rank}")
        except ProtocolError as error:
            self.garbage_frames += 1
            if self.garbage_frames <= _LOGGED_GARBAGE:
                logger.warning("dropped an invalid message from worker %d: %s", rank, error)
            return
        self._on_message(message)


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.FD))
