"""What the way through Ray Serve costs: the application's answers beside those of one of its servers, asked alone."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import aiohttp
import psutil
from ray_checks import Bench, servers

TOKENS, ROUNDS = 64, 3
STREAMS = (1, 4)  # no more than a replica should have, so that there is one
# What Ray calls its processes.
_PARTS = {"proxy": "ray::ProxyActor", "ingress": "Ingress", "replica": "ServeReplica:default:Replica"}


async def costs(bench: Bench) -> str:
    """Throughput of streams as a part of the server's own, and processor time as multiples of its front end's."""
    server = servers()[0]
    line = server.cmdline()
    said = []
    connector = aiohttp.UnixConnector(line[line.index("--uds") + 1], limit=0)
    async with aiohttp.ClientSession("http://localhost", connector=connector) as alone:
        for streams in STREAMS:
            await _asked(alone, streams)  # what is cached is so for both
            own = await _asked(alone, streams)
            before = _used(server)
            through = await _asked(bench.session, streams)
            used = _used(server) - before
            parts = ", ".join(f"{part} {used[part] / used['server']:.1f}" for part in _PARTS)
            said.append(f"{streams} streams: {own / through:.0%} of the server's throughput, {parts} times its time")
    return "; ".join(said)


async def _asked(session: aiohttp.ClientSession, streams: int) -> float:
    """Seconds that so many streams take at once, the shortest of some."""
    taken = []
    for _ in range(ROUNDS):
        begin = time.monotonic()
        await asyncio.gather(*(_stream(session, number) for number in range(streams)))
        taken.append(time.monotonic() - begin)
    return min(taken)


async def _stream(session: aiohttp.ClientSession, number: int) -> None:
    body: dict[str, Any] = {"prompt": f"{number} times upon a time", "max_tokens": TOKENS, "temperature": 0}
    async with session.post("/v1/completions", json=body | {"ignore_eos": True, "stream": True}) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()


def _used(server: psutil.Process) -> Counter[str]:
    """Seconds of processors that the front end of the server and Ray's processes have used."""
    used = Counter({"server": _seconds(server)})
    for process in psutil.process_iter(["cmdline"]):
        title = " ".join(process.info["cmdline"] or [])
        for part, name in _PARTS.items():
            if title.startswith("ray::") and name in title:
                used[part] += _seconds(process)
    return used


def _seconds(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])
