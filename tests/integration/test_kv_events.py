"""KV events of a server over fake workers, read by the schema that vLLM has published."""

import asyncio
import os
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from harness import Options, Server, pids_of, serving, until
from numaserve.server.kv_events.feed import KVFeed
from numaserve.server.kv_events.publisher import Publisher
from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.workers.interface.protocol import PAGE_SIZE
from served import Serve, announced_url

from tests.support.kv_reader import Subscriber, told_prefixes


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ns") as short:  # tmp_path may be too long for a socket
        yield Path(short)


def addresses(folder: Path) -> tuple[str, str]:
    return f"ipc://{folder}/events", f"ipc://{folder}/again"


def is_exact(server: Server, subscriber: Subscriber) -> bool:
    """Whether the subscriber knows what is cached; fails when it knows of anything else than has been told so far."""
    subscriber.catch_up()
    return subscriber.index.prefixes() == told_prefixes(server.engine._scheduler.kv.tree)


async def test_a_subscriber_has_the_tree_after_drops_eviction_aborts_and_a_restart_of_the_workers(folder: Path) -> None:
    log = KVEventLog("fake")
    feed = KVFeed(log, Publisher(*addresses(folder), "kv@", PAGE_SIZE, kept=20))
    subscriber = Subscriber(*addresses(folder))
    try:
        # Steps of no length would be over before a poll finds the stream; it must be cut off by the kill.
        async with serving(Options(pages=40, running=4, kv_log=log, faults=("--step-ms", "1"))) as server:
            for first in range(12):
                prompt = [10 + first // 3] * 70 + [20 + first] * 30
                await server.complete(prompt=prompt, max_tokens=40, cache_salt="secret" if first == 5 else None)
                subscriber.read(lose=range(0, 1000, 3))
            await until(lambda: is_exact(server, subscriber))
            assert len(subscriber.index.blocks) > 8
            server.engine._scheduler.flush_cache()
            await until(lambda: is_exact(server, subscriber))
            assert subscriber.index.blocks == {}
            streaming = asyncio.ensure_future(server.complete(prompt=[11] * 200, max_tokens=600, stream=True))
            await until(lambda: is_exact(server, subscriber) and len(subscriber.index.blocks) > 7)
            assert not streaming.done()
            os.kill(pids_of(server.engine)[0], signal.SIGKILL)
            await until(lambda: is_exact(server, subscriber) and not subscriber.index.blocks)
            await streaming
            await until(lambda: is_exact(server, subscriber) and len(subscriber.index.blocks) > 7)
    finally:
        subscriber.close()
        feed.close()


def test_the_serve_command_publishes_what_it_caches_and_leaves_no_socket(serve: Serve, folder: Path) -> None:
    events, again = addresses(folder)
    process = serve(f"kv_events={events}", f"kv_events_replay={again}")
    url = announced_url(process)
    modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in ("events", "again")]
    assert modes == [0o660, 0o660]
    subscriber = Subscriber(events, again, topic="kv@")
    try:
        prompt = list(range(10, 10 + 2 * PAGE_SIZE + 5))
        body = {"model": "tiny-model", "prompt": prompt, "max_tokens": 1}
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 200
        while len(subscriber.index.blocks) < 2:
            subscriber.catch_up()
        first, second = tuple(prompt[:PAGE_SIZE]), tuple(prompt[PAGE_SIZE : 2 * PAGE_SIZE])
        assert subscriber.index.prefixes() == {(first,), (first, second)}
    finally:
        subscriber.close()
    assert serve(f"kv_events={events}").wait(60) == 2  # another server listens there
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert list(folder.iterdir()) == []
