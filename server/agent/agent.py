"""The socket of an agent, and the front end that it works for.

An agent works for one front end at a time. The same front end takes it again at any time, which ends the launch before:
the front end has been started again, or has lost the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import zmq
from numaserve.server.agent.allowed import FrontEnds
from numaserve.server.agent.describing import describe
from numaserve.server.agent.hosted import HostedStage, HostOptions
from numaserve.server.supervisor.agent_messages import (
    LOST_S,
    Beat,
    Claim,
    Claimed,
    Describe,
    End,
    Ended,
    FromAgent,
    Mask,
    OtherVersion,
    Refused,
    StartStage,
    ToAgent,
    Working,
    decode_to_agent,
    encode_message,
)
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.host_links import KeyPair, listen
from numaserve.workers.interface.protocol import ProtocolError

_WORKING_S = 1.0

_log = logging.getLogger(__name__)


class Agent:
    """Serves the front ends of an allow list at one address. Must be constructed inside a running event loop.

    `fd` is a socket that listens at the address, and is closed with the agent. Raises `OperatorError` for an allow list
    that cannot be used.
    """

    def __init__(self, options: HostOptions, keys: KeyPair, front_ends: Path, fd: int) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._allowed = FrontEnds(front_ends, self._context)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a message to a peer that is gone is an error
        self._socket.setsockopt(zmq.LINGER, 0)
        self._holder = b""  # the connection of the front end that has taken the agent
        self._holder_key = ""
        self._stage: HostedStage | None = None
        self._changes = asyncio.Lock()  # claims and ends follow one another
        self._tasks: set[asyncio.Task[None]] = set()
        for each, react in ((self._allowed.socket, self._allowed.answer), (self._socket, self._read)):
            self._loop.add_reader(_descriptor(each), react)
        listen(self._socket, options.address, keys.secret, fd)

    async def close(self) -> None:
        """End the launch, and close all sockets."""
        async with self._changes:
            await self._end_stage()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in (self._allowed.socket, self._socket):
            self._loop.remove_reader(_descriptor(each))
        self._context.destroy(linger=0)

    def _read(self) -> None:
        # The descriptor is edge-triggered, so everything is read until the socket is empty.
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            if frames:
                key = str(frames[0].get("User-Id"))
                self._on_frames(identity.bytes, key, [frame.bytes for frame in frames])

    def _on_frames(self, peer: bytes, key: str, frames: list[bytes]) -> None:
        try:
            self._on_message(peer, key, decode_to_agent(frames))
        except OtherVersion as other:
            _log.warning("refused the front end %s, which runs numaserve %s", key, other)
            self._send(peer, Refused("another version"))  # the frame before it names this version
        except (ProtocolError, ValueError) as error:
            _log.warning("refused a message of the front end %s: %s", key, error)
            self._send(peer, Refused(f"the message is invalid: {error}"))

    def _on_message(self, peer: bytes, key: str, message: ToAgent) -> None:
        if isinstance(message, Describe):
            self._run(self._describe(peer, message))
        elif isinstance(message, Claim):
            self._run(self._claim(peer, key, message))
        elif peer != self._holder or self._stage is None:
            self._send(peer, Refused("the agent has not been taken, or has given up this front end"))
        elif isinstance(message, StartStage):
            self._stage.start(message)
        elif isinstance(message, Mask):
            self._stage.publish(message)
        elif isinstance(message, Beat):
            self._stage.beat(message)
        elif isinstance(message, End):
            self._run(self._end(peer, message))
        else:
            self._stage.pass_on(message)

    async def _describe(self, peer: bytes, message: Describe) -> None:
        working = self._loop.create_task(self._show_work(peer))
        try:
            answer = await asyncio.to_thread(describe, message)
        except OperatorError as error:
            self._send(peer, Refused(str(error)))
        else:
            self._send(peer, answer)
        finally:
            working.cancel()

    async def _show_work(self, peer: bytes) -> None:
        while True:
            self._send(peer, Working())
            await asyncio.sleep(_WORKING_S)

    async def _claim(self, peer: bytes, key: str, message: Claim) -> None:
        async with self._changes:
            if self._stage is not None and key != self._holder_key:
                self._send(peer, Refused(f"it works for the front end {self._holder_key}: stop that one first"))
                return
            await self._end_stage()
            try:
                stage = HostedStage(self._options, message.ranks, partial(self._send, peer), partial(self._lost, peer))
            except OSError as error:
                self._send(peer, Refused(f"the ranks cannot listen for rows: {error.strerror}"))
                return
            self._holder, self._holder_key, self._stage = peer, key, stage
            _log.info("working for the front end %s", key)
            self._send(peer, Claimed(stage.ports))

    async def _end(self, peer: bytes, message: End) -> None:
        async with self._changes:
            if peer == self._holder:
                await self._end_stage(message.grace_s)
                _log.info("the front end %s has ended its launch", self._holder_key)
                self._send(peer, Ended())

    async def _end_stage(self, grace_s: float = 0.0) -> None:
        stage, self._stage, self._holder = self._stage, None, b""
        if stage is not None:
            await stage.end(grace_s)

    def _lost(self, peer: bytes) -> None:
        _log.warning("nothing from the front end %s for %g s: ending its launch", self._holder_key, LOST_S)
        self._run(self._give_up(peer))

    async def _give_up(self, peer: bytes) -> None:
        async with self._changes:
            if peer == self._holder:
                await self._end_stage()

    def _send(self, peer: bytes, message: FromAgent) -> None:
        """Send a message. It is lost if the peer is gone or does not read, whose launch then ends for want of beats."""
        try:
            self._socket.send_multipart([peer, *encode_message(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            _log.debug("a message was not sent: %s", error)
        self._loop.call_soon(self._read)  # sending may swallow the edge that announces a message

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.FD))
