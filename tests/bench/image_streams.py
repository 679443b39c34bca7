"""The gaps of streams while another client sends images."""

import asyncio
import math
import multiprocessing
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from itertools import accumulate, pairwise

import numpy as np
from numaserve.server.loadtest.client import Client
from numaserve.server.loadtest.options import Traffic, Workload
from numaserve.server.loadtest.runner import Bench
from numaserve.server.loadtest.target import open_target
from numaserve.server.loadtest.workload.requests import BenchRequest
from numaserve.workers.bench.rows import Figure, Row, Rows

from tests.bench.bench_serving import Server
from tests.bench.hostile_client import ACCEPTED, REFUSED, bodies, send_all
from tests.bench.image_requests import ask, new_image, question, request
from tests.bench.vision_model import TILE

STREAMS, STREAM_PROMPT, STREAM_TOKENS = 8, 32, 400
MOST_IMAGES = 3  # while the streams last
LEAD_S = 1.0  # of the streams before the images
ALONE_S = 20.0
MOST_PASSES = 2  # over the hostile files: memory must not grow in the second
VOCABULARY = range(100, 40_000)
LARGEST = 2 * TILE  # pixels of a side, by the default of --max-image-pixels


def bench_streams(server: Server, tp: int, rounds: int, rng: np.random.Generator) -> Rows:
    """Measure the gaps of streams, alone and while the server answers about images of the largest allowed size."""
    asyncio.run(_streams(server.url, 1, rng))  # the server learns what steps take
    for images in (0, min(rounds, MOST_IMAGES)):
        gaps, seconds = asyncio.run(_streams(server.url, images, rng))
        ttft = statistics.median(seconds) * 1e3 if seconds else None
        yield Row("streams", {"tp": tp, "streams": STREAMS, "images": images}, _spread(gaps) | {"image_ttft_ms": ttft})


def bench_hostile(server: Server, tp: int, rounds: int, rng: np.random.Generator) -> Rows:
    """Measure the gaps of streams, alone and while another client sends images that the server must refuse, or odd ones
    that it must answer. The memory is that of all processes of the server."""
    asyncio.run(_streams(server.url, 1, rng))  # the server learns what steps take
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for kind in (REFUSED, ACCEPTED):
            pool.submit(bodies, kind).result()
        for number in range(min(rounds, MOST_PASSES)):
            for kind in ("none", REFUSED, ACCEPTED):
                before = server.resident_mib()
                gaps, statuses, seconds = asyncio.run(_beside(server.url, pool, kind, f"pass {number}", rng))
                figures = {f"status_{status}": float(count) for status, count in sorted(statuses.items())}
                figures |= {"seconds": seconds, "before_mib": before, "after_mib": server.resident_mib()}
                yield Row("hostile", {"tp": tp, "streams": STREAMS, "images": kind}, _spread(gaps) | figures)


def _spread(gaps: Sequence[float]) -> dict[str, Figure]:
    p50, p95, p99 = (float(each) * 1e3 for each in np.quantile(gaps, (0.5, 0.95, 0.99)))
    return {
        "gap_p50_ms": p50,
        "gap_p95_ms": p95,
        "gap_p99_ms": p99,
        "gap_max_ms": max(gaps) * 1e3,
        "gaps": len(gaps),
    }


async def _streams(url: str, images: int, rng: np.random.Generator) -> tuple[list[float], list[float]]:
    """Return the gaps of streams and the seconds to the first tokens about images, one after the other. With images,
    only the gaps meanwhile count."""
    words, seconds = random.Random(int(rng.integers(1 << 30))), []
    bodies = [request(question(new_image(rng, LARGEST)), 1) for _ in range(images)]
    begin, end = -math.inf, math.inf
    async with _connected(url) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(_stream(client, words)) for _ in range(STREAMS)]
        await asyncio.sleep(LEAD_S)
        for number, body in enumerate(bodies):
            begin = begin if number else time.perf_counter()
            seconds.append((await asyncio.to_thread(ask, url, body))[0])
            end = time.perf_counter()
    return _gaps([task.result() for task in tasks], begin, end), seconds


async def _beside(
    url: str, pool: ProcessPoolExecutor, kind: str, salt: str, rng: np.random.Generator
) -> tuple[list[float], Counter[int], float]:
    """Return the gaps of streams while a process sends a kind of images, the statuses of their answers, and the
    seconds that these took."""
    words, statuses, ends = random.Random(int(rng.integers(1 << 30))), Counter[int](), asyncio.Event()
    async with _connected(url) as client:

        async def streams() -> list[list[float]]:
            moments = []
            while not ends.is_set():
                moments.append(await _stream(client, words))
            return moments

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(streams()) for _ in range(STREAMS)]
            await asyncio.sleep(LEAD_S)
            begin = time.perf_counter()
            if kind == "none":
                await asyncio.sleep(ALONE_S)
            else:
                statuses = await asyncio.wrap_future(pool.submit(send_all, url, kind, salt))
            end = time.perf_counter()
            ends.set()
    return _gaps([each for task in tasks for each in task.result()], begin, end), statuses, end - begin


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Client]:
    traffic = Traffic(warmup_requests=0)
    async with open_target(url, traffic) as target:
        yield (await Bench.connect(target, Workload(), traffic)).client


async def _stream(client: Client, words: random.Random) -> list[float]:
    """Return the moments of a stream's tokens."""
    prompt, begin = words.choices(VOCABULARY, k=STREAM_PROMPT), time.perf_counter()
    outcome = await client.complete(BenchRequest(prompt, STREAM_PROMPT, STREAM_TOKENS))
    if outcome.error is not None:
        raise RuntimeError(outcome.error)
    return list(accumulate(outcome.itls_s, initial=begin + outcome.ttft_s))


def _gaps(streams: Sequence[Sequence[float]], begin: float, end: float) -> list[float]:
    """Return the gaps between the moments of each stream's tokens that overlap the time from `begin` to `end`."""
    found = [pair for moments in streams for pair in pairwise(moments)]
    return [after - before for before, after in found if begin <= after and before <= end]
