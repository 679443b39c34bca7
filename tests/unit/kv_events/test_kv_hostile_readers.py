"""Readers of KV events that send too much, or do not read: what becomes of them, of memory and of others."""

import select
import socket
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq
from numaserve.server.kv_events import exchange, zmtp
from numaserve.server.kv_events.publisher import Publisher
from numaserve.server.scheduler.cache.kv_events import KVEvent, PagesStored

from tests.support.kv_reader import END, Subscriber

PAGE, TOKEN = 32, 1 << 17  # tokens of a page, each of five bytes: readers' work is by the page
LARGE = 2000  # pages of a batch that fills the buffers of a socket with a few others
KEPT = 4


class Raw:
    """A peer without ZeroMQ. It reads nothing unless it is asked to."""

    def __init__(self, endpoint: str, socket_type: bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(endpoint.removeprefix("ipc://"))
        self.socket.sendall(zmtp.GREETING)
        self.socket.sendall(b"".join(zmtp.ready(socket_type)))

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(zmtp.message(*frames)))

    def read_to_the_end(self) -> int:
        """The bytes that come before the server ends the connection."""
        count = 0
        try:
            while data := self.socket.recv(1 << 16):
                count += len(data)
        except ConnectionResetError:
            pass
        return count

    def wait_for_the_end(self) -> None:
        """Wait until the server ends the connection, and read nothing."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        assert poll.poll(20_000)

    def read_an_answer(self) -> None:
        """Read up to the message that ends it."""
        end, last = b"".join(zmtp.message(b"", END, b"")), b""
        while not last.endswith(end):
            data = self.socket.recv(1 << 16)
            assert data
            last = (last + data)[-len(end) :]

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with tempfile.TemporaryDirectory(prefix="ns") as folder:
        made = Publisher(f"ipc://{folder}/events", f"ipc://{folder}/again", "kv@here@model", PAGE, kept=KEPT)
        yield made
        made.close()
        assert list(Path(folder).iterdir()) == []


@pytest.fixture
def subscriber(publisher: Publisher) -> Iterator[Subscriber]:
    with closing(Subscriber(*publisher.endpoints, topic="kv@")) as made:
        yield made


def large(number: int) -> list[KVEvent]:
    digests = [number * LARGE + each + 1 for each in range(LARGE)]
    return [PagesStored(None, digests, [TOKEN] * LARGE * PAGE)]


def publish_small(publisher: Publisher, subscriber: Subscriber, count: int) -> None:
    """Publish, and see that a reader that means well has it all."""
    first = subscriber.next
    for number in range(first, first + count):
        publisher.publish([PagesStored(None, [1 << 60 | number], [number] * PAGE)])
    while subscriber.next < first + count:
        subscriber.read(wait_ms=1)
        subscriber.catch_up()


def test_who_subscribes_without_end_is_disconnected_and_others_lose_nothing(
    publisher: Publisher, subscriber: Subscriber
) -> None:
    with closing(Raw(publisher.endpoints[0], b"XSUB")) as attacker, pytest.raises(OSError, match=r"."):
        for number in range(50_000):
            attacker.send(b"\1%06d" % number + b"x" * 200)
    publish_small(publisher, subscriber, 20)


@pytest.mark.parametrize("socket_type", [b"SUB", b"DEALER"])
def test_a_frame_of_more_than_a_kibibyte_ends_the_connection_before_it_has_come(
    publisher: Publisher, socket_type: bytes
) -> None:
    endpoint = publisher.endpoints[socket_type == b"DEALER"]
    with closing(Raw(endpoint, socket_type)) as attacker:
        attacker.socket.sendall(b"\2" + (1 << 40).to_bytes(8, "big"))
        attacker.read_to_the_end()


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\n".ljust(64),
        zmtp.GREETING[:10] + b"\1" + zmtp.GREETING[11:],
        zmtp.GREETING.replace(b"NULL\0", b"CURVE"),
        zmtp.GREETING + b"".join(zmtp.ready(b"PUSH")),
        zmtp.GREETING + b"".join(zmtp.command(b"ERROR", b"")),
        zmtp.GREETING + b"".join(zmtp.command(b"READY", b"\x0b")),
        zmtp.GREETING + b"\4\0",
    ],
)
def test_who_is_no_reader_is_disconnected(publisher: Publisher, greeting: bytes) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as peer:
        peer.settimeout(20)
        peer.connect(publisher.endpoints[0].removeprefix("ipc://"))
        peer.sendall(greeting)
        while peer.recv(1024):
            pass


def test_memory_stays_where_it_was_whatever_is_subscribed_and_asked(
    publisher: Publisher, subscriber: Subscriber
) -> None:
    publish_small(publisher, subscriber, 10)
    peers = []
    tracemalloc.start()
    try:
        for _ in range(40):
            peers += [Raw(publisher.endpoints[0], b"SUB"), Raw(publisher.endpoints[1], b"DEALER")]
            subscriptions = [*(b"\1kv@%06d" % number + b"x" * 240 for number in range(50)), b"\1"]
            peers[-2].socket.sendall(b"".join(part for each in subscriptions for part in zmtp.message(each)))
            peers[-1].socket.sendall(b"".join(zmtp.message(b"", bytes(8))) * 300)
        publish_small(publisher, subscriber, 20)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        for peer in peers:
            peer.close()
    assert held < 2 * 2**20


def test_every_question_is_answered_to_its_end_however_late_the_answers_are_read(publisher: Publisher) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        asking.connect(publisher.endpoints[1])
        for number in range(KEPT):
            publisher.publish(large(number))
        for _ in range(30):
            asking.send_multipart([b"", bytes(8)])
        ends = 0
        while ends < 30:
            assert asking.poll(20_000)
            ends += asking.recv_multipart()[2] == END


def test_who_still_reads_a_batch_that_is_no_longer_kept_is_disconnected_and_comes_back_to_all(
    publisher: Publisher, subscriber: Subscriber
) -> None:
    with closing(Raw(publisher.endpoints[0], b"SUB")) as slow:
        slow.send(b"\1kv@")
        for number in range(3 * KEPT):
            publisher.publish(large(number))
            while subscriber.next < number + 2:
                subscriber.read(wait_ms=1)
                subscriber.catch_up()
        assert slow.read_to_the_end() > 0
    assert len(subscriber.index.blocks) == 3 * KEPT * LARGE


def test_who_does_not_read_its_summary_makes_place_for_the_next_one(
    publisher: Publisher, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3 * KEPT):
        publisher.publish(large(number))
    while subscriber.next < 3 * KEPT + 1:
        subscriber.catch_up()
    with closing(Raw(publisher.endpoints[1], b"DEALER")) as slow, closing(Subscriber(*publisher.endpoints)) as late:
        with monkeypatch.context() as patch:
            patch.setattr(exchange, "_SUMMARY_SECONDS", 0.0)
            slow.send(bytes(8))
            slow.wait_for_the_end()
        late.catch_up()
        assert len(late.index.blocks) == 3 * KEPT * LARGE


def test_who_waits_for_another_s_summary_gets_its_own_after_it(publisher: Publisher, subscriber: Subscriber) -> None:
    for number in range(3 * KEPT):
        publisher.publish(large(number))
    while subscriber.next < 3 * KEPT + 1:
        subscriber.catch_up()
    with (
        closing(Raw(publisher.endpoints[1], b"DEALER")) as first,
        closing(Raw(publisher.endpoints[1], b"REQ")) as second,
    ):
        second.send(bytes(8))
        while not second.socket.recv(1 << 12, socket.MSG_PEEK)[len(zmtp.GREETING) + 100 :]:
            pass
        first.send(bytes(8))
        second.read_an_answer()
        first.read_an_answer()


def test_of_too_many_peers_the_idle_ones_go_and_readers_stay(
    publisher: Publisher, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_small(publisher, subscriber, 2)
    monkeypatch.setattr(exchange, "MOST_PEERS", 3)
    with ExitStack() as stack:
        idle = [stack.enter_context(closing(Raw(publisher.endpoints[0], b"SUB"))) for _ in range(6)]
        for each in idle[:4]:
            each.read_to_the_end()
        another = stack.enter_context(closing(Subscriber(*publisher.endpoints)))
        another.catch_up()
        publish_small(publisher, another, 2)
        subscriber.catch_up()
        publish_small(publisher, subscriber, 5)


def test_heartbeats_are_answered_and_a_subscription_can_be_taken_back(publisher: Publisher) -> None:
    with closing(Raw(publisher.endpoints[0], b"SUB")) as peer:
        decoder, frames = zmtp.Decoder(), list[zmtp.Frame]()
        peer.socket.sendall(b"".join(zmtp.command(b"SUBSCRIBE", b"kv@") + zmtp.command(b"CANCEL", b"kv@")))
        publisher.publish([PagesStored(None, [1], [1] * PAGE)])
        peer.socket.sendall(b"".join(zmtp.command(b"PING", b"\0\0so")))
        while len(frames) < 2:
            frames += decoder.feed(peer.socket.recv(1024))
        assert [zmtp.split_command(frame) for frame in frames][1:] == [(b"PONG", b"so")]
