"""The messages of KV events and the sockets that they go through."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from numaserve.server.kv_events.history import History
from numaserve.server.kv_events.publisher import Publisher
from numaserve.server.kv_events.wire import encode
from numaserve.server.scheduler.cache.keys import Content, content_key
from numaserve.server.scheduler.cache.kv_events import KVEvent, KVEventLog, PagesCleared, PagesRemoved, PagesStored
from numaserve.server.scheduler.cache.radix_tree import RadixTree
from numaserve.server.scheduler.cache.scope import COMMON_SCOPE

from tests.support.kv_reader import END, Subscriber, told_prefixes

PAGE = 2


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ns") as short:  # tmp_path may be too long for a socket
        yield Path(short)


@pytest.fixture
def publisher(folder: Path) -> Iterator[Publisher]:
    made = Publisher(f"ipc://{folder}/events", f"ipc://{folder}/again", "kv@here@model", PAGE, kept=4)
    yield made
    made.close()


@pytest.fixture
def subscriber(publisher: Publisher) -> Iterator[Subscriber]:
    made = Subscriber(*publisher.endpoints, topic="kv@")
    yield made
    made.close()


def test_the_messages_are_vllms_with_every_field_written() -> None:
    events: list[KVEvent] = [PagesStored(None, [1 << 63, 7], [1, 2, 3, 4]), PagesRemoved([7]), PagesCleared()]
    assert msgspec.msgpack.decode(encode(events, PAGE, 12.5)) == [
        12.5,
        [
            {
                "type": "BlockStored",
                "block_hashes": [1 << 63, 7],
                "parent_block_hash": None,
                "token_ids": [1, 2, 3, 4],
                "block_size": PAGE,
                "lora_id": None,
                "medium": None,
                "lora_name": None,
            },
            {"type": "BlockRemoved", "block_hashes": [7], "medium": None},
            {"type": "AllBlocksCleared"},
        ],
        0,
    ]


def test_pages_of_an_adapter_have_its_name_and_no_extra_keys_and_a_late_reader_learns_the_name() -> None:
    stored = PagesStored(None, [7], [1, 2], adapter="sql")
    history = History(PAGE, limit=1)
    for event in (stored, PagesRemoved([9])):
        history.add(encode([event], PAGE, 12.5))
    for payload in (encode([stored], PAGE, 12.5), dict(history.since(0, 12.5))[0]):
        message = msgspec.msgpack.decode(payload)[1][-1]
        assert (message["lora_name"], message["lora_id"], "extra_keys" in message) == ("sql", None, False)


def test_images_of_a_block_are_its_extra_keys_and_text_has_none() -> None:
    images = {5: (Content("aa", -1),), 7: (Content("aa", -3), Content("bb", 1))}
    message = encode([PagesStored(None, [4, 5, 7], [1, 2, 0, 0, 0, 0], images)], PAGE, 12.5)
    [event] = msgspec.msgpack.decode(message)[1]
    assert event["extra_keys"] == [None, [["aa", -1]], [["aa", -3], ["bb", 1]]]


@pytest.mark.parametrize("seed", range(4))
def test_a_reader_that_loses_messages_asks_for_them_and_has_the_tree(
    publisher: Publisher, subscriber: Subscriber, seed: int
) -> None:
    chance = random.Random(seed)
    log = KVEventLog("model")
    tree = RadixTree(PAGE, log)
    keys = [1, 2, *(content_key(digest, row) for digest in (b"cat", b"dog") for row in range(2))]
    for _ in range(60):
        node = tree.match_prefix(COMMON_SCOPE, [], 0)
        tree.lock(node)
        for page in range(chance.randrange(1, 4)):
            key = (chance.choice(keys), chance.choice(keys))
            tokens = tuple(each if isinstance(each, int) else 0 for each in key)
            node = tree.insert(node, key, page, tokens if tokens != key else None)
        tree.unlock(node)
        tree.evict(chance.choice([0, 0, 1, 3, 99 * (chance.random() < 0.1)]))
        if events := log.take():
            publisher.publish(events)
        if chance.random() < 0.3:
            subscriber.read(lose={each for each in range(200) if chance.random() < 0.4}, wait_ms=1)
    subscriber.catch_up()
    assert subscriber.index.prefixes() == told_prefixes(tree)
    assert subscriber.index.blocks


def test_a_reader_that_comes_late_gets_a_summary_of_what_is_no_longer_kept_and_what_follows(
    publisher: Publisher, subscriber: Subscriber
) -> None:
    for number in range(10):
        publisher.publish([PagesStored(number or None, [number + 1], [number, number])])
    while subscriber.next < 11:  # the first batch is the publisher's own
        subscriber.catch_up()
    assert len(subscriber.index.prefixes()) == 10
    publisher.publish([PagesRemoved([10])])
    while subscriber.next < 12:
        subscriber.catch_up()
    assert len(subscriber.index.prefixes()) == 9


def ask(publisher: Publisher, *frames: bytes) -> list[list[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(publisher.endpoints[1])
        socket.send_multipart([b"nonsense", b"more", b"of it"])
        socket.send_multipart([b"short"])
        socket.send_multipart(frames)
        answers = []
        while not answers or answers[-1][-2] != END:
            assert socket.poll(20_000)
            answers.append(socket.recv_multipart())
        return answers


def test_a_question_without_a_delimiter_is_answered_without_one_and_nonsense_not_at_all(publisher: Publisher) -> None:
    zero = (0).to_bytes(8, "big")
    while len(found := ask(publisher, zero)) < 2:  # the thread may not have sent its first batch yet
        pass
    [topic, number, payload], end = found
    assert (topic, number) == (b"kv@here@model", zero)
    assert msgspec.msgpack.decode(payload)[1] == [{"type": "AllBlocksCleared"}]
    assert end == [b"", END, b""]
    assert ask(publisher, b"", zero)[-1] == [b"", b"", END, b""]


def test_who_asks_for_what_has_not_happened_gets_the_end_alone(publisher: Publisher) -> None:
    assert ask(publisher, (1 << 63).to_bytes(8, "big")) == [[b"", END, b""]]


def test_closing_leaves_no_file_and_frees_the_address(folder: Path) -> None:
    for _ in range(2):
        Publisher(f"ipc://{folder}/events", None, "", PAGE).close()
        assert list(folder.iterdir()) == []
