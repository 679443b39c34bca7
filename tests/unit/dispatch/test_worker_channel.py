"""The sockets of a group, with plain ZeroMQ peers in place of workers."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from numaserve.server.dispatch.channel import MAX_PENDING_FRAMES, WorkerGroupChannel
from numaserve.workers.interface.protocol import PROTOCOL_VERSION, FromWorker, Shutdown, StepPlan, WorkerStats, encode


@contextmanager
def _peers(channel: WorkerGroupChannel) -> Iterator[list[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        sockets = [context.socket(zmq.PAIR) for _ in range(channel.world_size)]
        for rank, socket in enumerate(sockets):
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(channel.endpoint(rank))
        yield sockets
        for socket in sockets:
            socket.close()


async def _receive(socket: zmq.Socket[bytes]) -> bytes:
    assert await asyncio.to_thread(socket.poll, 10_000)
    return socket.recv()


async def _until_received(received: list[FromWorker], count: int) -> None:
    async with asyncio.timeout(10):
        while len(received) < count:
            await asyncio.sleep(0.005)


async def test_what_is_sent_before_a_worker_connects_arrives_in_order() -> None:
    channel = WorkerGroupChannel(2, lambda _: None)
    plans = [StepPlan(i, []) for i in range(5)]
    channel.send(1, Shutdown())
    for plan in plans:
        channel.broadcast(plan)
    with _peers(channel) as (first, second):
        assert [await _receive(first) for _ in plans] == [encode(plan) for plan in plans]
        assert await _receive(second) == encode(Shutdown())
        assert [await _receive(second) for _ in plans] == [encode(plan) for plan in plans]
    channel.close()


async def test_messages_are_handed_over_with_the_rank_of_their_socket() -> None:
    received: list[FromWorker] = []
    channel = WorkerGroupChannel(2, received.append)
    with _peers(channel) as peers:
        for rank, peer in enumerate(peers):
            peer.send(encode(WorkerStats(rank, 7, 0)))
        await _until_received(received, 2)
        assert {message.rank for message in received} == {0, 1}
        peers[0].send(encode(WorkerStats(1, 7, 0)))  # claims to be the other one
        peers[0].send(encode(WorkerStats(0, 8, 0)))
        await _until_received(received, 3)
        assert received[2] == WorkerStats(0, 8, 0)
        assert channel.garbage_frames == 1
    channel.close()


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [bytes([PROTOCOL_VERSION])],
        [bytes([PROTOCOL_VERSION + 1]) + encode(WorkerStats(0, 1, 1))[1:]],
        [b"\xff" * 5000],
        [encode(Shutdown())],
        [b"a", b"b"],
    ],
)
async def test_frames_that_are_no_message_are_counted_and_dropped(frames: list[bytes]) -> None:
    received: list[FromWorker] = []
    channel = WorkerGroupChannel(1, received.append)
    with _peers(channel) as (peer,):
        peer.send_multipart(frames)
        peer.send(encode(WorkerStats(0, 1, 1)))
        await _until_received(received, 1)
        assert channel.garbage_frames == 1
    channel.close()


async def test_every_truncation_of_a_message_is_dropped() -> None:
    received: list[FromWorker] = []
    channel = WorkerGroupChannel(1, received.append)
    whole = encode(WorkerStats(0, 123456789, 3))
    with _peers(channel) as (peer,):
        for length in range(len(whole)):
            peer.send(whole[:length])
        peer.send(whole)
        await _until_received(received, 1)
        assert channel.garbage_frames == len(whole)
    channel.close()


async def test_a_worker_that_never_reads_does_not_fill_the_memory() -> None:
    channel = WorkerGroupChannel(1, lambda _: None)
    for step in range(3 * MAX_PENDING_FRAMES):
        channel.broadcast(StepPlan(step, []))
    with _peers(channel) as (peer,):
        for step in range(MAX_PENDING_FRAMES):
            assert await _receive(peer) == encode(StepPlan(step, []))
        assert not peer.poll(50)
    channel.close()


async def test_closing_removes_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNTIME_DIRECTORY", ".")  # relative: the absolute one may be too long for a socket
    channel = WorkerGroupChannel(1, lambda _: None)
    (made,) = tmp_path.iterdir()
    assert made.stat().st_mode & 0o777 == 0o700
    assert (made / "rank0.sock").is_socket()
    channel.close()
    channel.close()
    assert not made.exists()
