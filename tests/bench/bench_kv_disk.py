"""The disk tier: what it gains for sessions that do not fit into memory, and what its writes cost running streams.

python -m tests.bench.bench_kv_disk [--model demo] [--table sessions streams] [--sessions 64] [--rounds 4]

`sessions`: each of the sessions has six turns, of 2,000 tokens and then of 200, and memory for the KV cache is a fourth
of what they need. All have their turn before any has its next one. `streams`: gaps between tokens of four streams while
prompts of 512 tokens arrive, alternately on a server with the tier and on one without, both started `--rounds` times.
The folder is empty at first and is removed.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx

from tests.bench.bench_serving import Server
from tests.support.alternating import quartiles, ratios_of_loads

_TURNS, _FIRST, _LATER, _OUTPUT = 6, 2000, 200, 16
_AT_ONCE = 8
_KV_PART = 4  # of what the sessions need is in memory
_STREAMS, _STREAM_TOKENS, _PROMPT, _PAUSE_S = 4, 160, 512, 1.0
_LOAD_ROUNDS = 3
_PATIENCE_S = 3600.0


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables: dict[str, Callable[[argparse.Namespace], None]] = {"sessions": _sessions, "streams": _streams}
    parser.add_argument("--model", default="demo")
    parser.add_argument("--table", nargs="+", choices=tables, default=list(tables))
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--token-bytes", type=int, default=23_040, help="of the KV cache; those of the demo")
    parser.add_argument("--vocabulary", type=int, default=40_000, help="token ids in prompts are below it")
    asked = parser.parse_args()
    for name in asked.table:
        tables[name](asked)


def _sessions(asked: argparse.Namespace) -> None:
    tokens = asked.sessions * (_FIRST + (_TURNS - 1) * _LATER + _TURNS * _OUTPUT)
    memory = ("--kv-cache-gib", f"{tokens // _KV_PART * asked.token_bytes / (1 << 30):.3f}")
    rates = {}
    for tier in (True, False):
        with _server(asked.model, *memory, tier=tier) as server:
            seconds, prompts, cached = asyncio.run(_all_turns(server.url, asked.sessions, range(3, asked.vocabulary)))
        rates[tier] = prompts / seconds
        found = f"{cached / prompts:.0%} of them cached"
        print(
            f"sessions, {'with' if tier else 'without'} the tier: {rates[tier]:.0f} prompt tokens/s, {found}",
            flush=True,
        )
    print(f"sessions: {rates[True] / rates[False]:.2f} times the throughput with the tier", flush=True)


async def _all_turns(url: str, sessions: int, vocabulary: range) -> tuple[float, int, int]:
    """Return the seconds of all turns, their prompt tokens, and how many of these were cached."""
    rng, places = random.Random(0), asyncio.Semaphore(_AT_ONCE)
    histories = [rng.choices(vocabulary, k=_FIRST) for _ in range(sessions)]
    prompts = cached = 0
    begin = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S) as client:

        async def turn(history: list[int]) -> None:
            nonlocal prompts, cached
            async with places:
                body = {"prompt": history, "max_tokens": _OUTPUT, "temperature": 0, "ignore_eos": True}
                answer = (await client.post("/v1/completions", json=body | {"return_token_ids": True})).json()
            prompts += answer["usage"]["prompt_tokens"]
            cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            history += answer["choices"][0]["token_ids"] + rng.choices(vocabulary, k=_LATER)

        for _ in range(_TURNS):
            await asyncio.gather(*map(turn, histories))
    return time.perf_counter() - begin, prompts, cached


def _streams(asked: argparse.Namespace) -> None:
    seeds = itertools.count()

    def gap(server: Server) -> dict[str, float]:
        return {"gap": asyncio.run(_gaps(server.url, next(seeds), range(3, asked.vocabulary)))}

    tier, none = (partial(_server, asked.model, tier=tier) for tier in (True, False))
    # The first round of a load is for the servers to learn the times of their steps.
    loads = ratios_of_loads(tier, none, asked.rounds, range(-1, _LOAD_ROUNDS), gap)["gap"]
    for load in loads:
        print(f"streams: {' '.join(f'{ratio:.3f}' for ratio in load)} times the gap", flush=True)
    low, middle, high = quartiles([*itertools.chain.from_iterable(loads)])
    print(f"streams: {middle:.3f} times the gap with writes ({low:.3f} to {high:.3f})", flush=True)


async def _gaps(url: str, number: int, vocabulary: range) -> float:
    """Return the mean seconds between two tokens of streams, while prompts arrive that are written to disk."""
    rng, is_over = random.Random(number), asyncio.Event()
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S) as client:

        async def stream() -> float:
            body = {"prompt": rng.choices(vocabulary, k=32), "max_tokens": _STREAM_TOKENS, "ignore_eos": True}
            moments = []
            async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        moments.append(time.perf_counter())
            return (moments[-1] - moments[0]) / (len(moments) - 1)

        async def prompts() -> None:
            while not is_over.is_set():
                body = {"prompt": rng.choices(vocabulary, k=_PROMPT), "max_tokens": 1}
                await client.post("/v1/completions", json=body)
                await asyncio.sleep(_PAUSE_S)

        arriving = asyncio.create_task(prompts())
        gaps: Sequence[float] = await asyncio.gather(*(stream() for _ in range(_STREAMS)))
        is_over.set()
        await arriving
    return statistics.mean(gaps)


@contextmanager
def _server(model: str, *options: str, tier: bool) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="kv-disk-", dir="/var/tmp") as folder:
        disk = ("--kv-disk-path", str(Path(folder) / "disk"), "--kv-disk-gib", "16") if tier else ()
        server = Server(model, 1, (*options, *disk))
        try:
            yield server
        finally:
            server.stop()


if __name__ == "__main__":
    main()
