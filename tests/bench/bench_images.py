"""Images: the time to the first token, the speed of the vision tower, and the cost to other clients.

python -m tests.bench.bench_images [--tp 1 2] [--table first-token large tower streams hostile event-loop]
python -m tests.bench.bench_images --url http://127.0.0.1:8080 [--side 1024]

The models have random weights and the shape of SmolVLM-500M (`vision_model.py`). Those of the table `large`, whose
images have 1024 x 1024 pixels, have the shape of Qwen3.5-0.8B (`grid_vision_model.py`). Each image is new, unless it is
that of a second turn. With --url the first table is that of a running server with OpenAI's chat API, such as
llama-server, and nothing is started.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import numpy as np
from numaserve.server.cli.bench_report import MachineReport
from numaserve.server.profiling.figures import RankFigures, best_of, between
from numaserve.server.profiling.remote import Remote
from numaserve.workers.bench.rows import Figure, Row, Rows

from tests.bench import grid_vision_model, vision_model
from tests.bench.bench_serving import Samples, Server, growth, serving
from tests.bench.image_requests import JSON, PATIENCE_S, Messages, ask, new_image, of_pixels, question, request
from tests.bench.image_streams import VOCABULARY, bench_hostile, bench_streams
from tests.bench.vision_model import TILE

PROMPT_TOKENS = 1024  # of a text prompt with as many rows as a tile has patches
LARGE = 1024  # pixels of a side
FILE_SIDE = 2600  # pixels of a side of a file of 20 MB
PING_S = 0.002
PRODUCTS = ("linear", "linear_partial", "up", "gate_up")


def first_tokens(url: str, rounds: int, rng: np.random.Generator, side: int) -> list[tuple[float, Messages]]:
    """Return the seconds to the first token about new images, and each conversation so far. An image has `side` pixels
    a side."""
    found = []
    for number in range(rounds + 1):
        messages = question(new_image(rng, side))
        seconds, answer = ask(url, request(messages))
        if number:  # the first one is slower
            found.append((seconds, [*messages, {"role": "assistant", "content": answer}]))
    return found


def bench_first_token(name: str, url: str, rounds: int, rng: np.random.Generator, side: int) -> Row:
    """Measure requests with a new image."""
    return Row("first token", {"server": name}, _spread([each for each, _ in first_tokens(url, rounds, rng, side)]))


def bench_large(server: Server, tp: int, rounds: int, rng: np.random.Generator) -> Rows:
    """Measure requests with a new image of `LARGE` pixels a side, and a second turn about each."""
    return bench_turns(server, tp, rounds, rng, LARGE)


def bench_turns(server: Server, tp: int, rounds: int, rng: np.random.Generator, side: int = TILE) -> Rows:
    """Measure requests with a new image, and a second turn about each."""
    server_url = server.url
    first_tokens(server_url, 2, rng, side)  # the server learns what steps take
    before = server.samples()
    first = first_tokens(server_url, rounds, rng, side)
    between_turns = server.samples()
    second = [ask(server_url, request([*messages, {"role": "user", "content": "Go on."}]))[0] for _, messages in first]
    after = server.samples()
    firsts = [each for each, _ in first]
    spent = _spent(before, between_turns, rounds + 1)
    yield Row("first token", {"tp": tp, "side": side, "turn": 1}, _spread(firsts) | spent)
    yield Row(
        "first token",
        {"tp": tp, "side": side, "turn": 2},
        _spread(second)
        | _spent(between_turns, after, rounds)
        | {"of_first_turn": statistics.median(second) / statistics.median(firsts)},
    )


def _spread(seconds: Sequence[float]) -> dict[str, Figure]:
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return {"ttft_ms": middle * 1e3, "quartile_1_ms": low * 1e3, "quartile_3_ms": high * 1e3}


def _spent(before: Samples, after: Samples, requests: int) -> dict[str, Figure]:
    """Return the parts of a request's time that the server counts."""
    decode = growth(before, after, "image_decode_seconds_sum")
    return {
        "decodes": growth(before, after, "image_decode_seconds_count"),
        "decode_ms": decode / requests * 1e3,
        "tower_ms": growth(before, after, "vision_tower_seconds_total") / requests * 1e3,
    }


def bench_tower(server: Server, tp: int, rounds: int, rng: np.random.Generator) -> Rows:
    """Measure products and attention of the tower, and those of text prompts of as many rows."""
    words = random.Random(int(rng.integers(1 << 30)))

    def text() -> None:
        body = {"prompt": words.choices(VOCABULARY, k=PROMPT_TOKENS), "max_tokens": 1, "temperature": 0}
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S).raise_for_status()

    remote = Remote(server.url, None)
    profiles = [remote.profile(ceilings=True)]
    for _ in range(rounds):
        for work in (lambda: ask(server.url, request(question(new_image(rng)), 1)), text):
            work()
            profiles.append(remote.profile())
    profiles.append(remote.profile(ceilings=True))
    ceilings = best_of(profiles[0][0].ceilings, profiles[-1][0].ceilings)
    peak = ceilings.flops_s["bf16"] if ceilings else 0.0
    of_image, of_text = (
        [between(*pair)[0] for pair in zip(profiles[first:-2:2], profiles[first + 1 : -1 : 2], strict=True)]
        for first in (0, 1)
    )
    for name, steps, prefix in (("tower", of_image, "tower "), ("text", of_text, "")):
        for part, names in (("products", PRODUCTS), ("attention", ("attention",))):
            rates = [_flops_s(each, [prefix + operation for operation in names]) for each in steps]
            rate = statistics.median(rates)
            figures = {"gflop_s": rate / 1e9, "best_gflop_s": max(rates) / 1e9}
            yield Row(
                "tower", {"tp": tp, "rows": name, "part": part}, figures | {"of_peak": rate / peak if peak else None}
            )


def _flops_s(figures: RankFigures, names: Sequence[str]) -> float:
    found = [each for each in figures.operations if each.name in names]
    return sum(each.flops for each in found) / sum(each.ns for each in found) * 1e9


def bench_event_loop(server: Server, tp: int, rounds: int, rng: np.random.Generator) -> Rows:
    """Measure the longest answers of /health, alone and while the body of an image of 20 MB arrives."""
    file = of_pixels(rng.integers(0, 256, (FILE_SIDE, FILE_SIDE, 3)))
    bodies = [request(question(file), number + 1) for number in range(rounds)]
    path = f"{server.url}/v1/chat/completions"
    client = httpx.Client(timeout=PATIENCE_S, headers=JSON)
    cases: list[tuple[str, Callable[[], object]]] = [("none", lambda: time.sleep(1.0))]
    cases += [("20 MB", lambda data=data: client.post(path, content=data).raise_for_status()) for data in bodies]
    for name, work in cases:
        pings = asyncio.run(_pings(server.url, work))
        figures = {"ping_p50_ms": statistics.median(pings) * 1e3, "ping_max_ms": max(pings) * 1e3, "pings": len(pings)}
        yield Row("event loop", {"tp": tp, "image": name}, figures)


async def _pings(url: str, work: Callable[[], object]) -> list[float]:
    """Return the seconds of answers of /health while a thread works."""
    seconds: list[float] = []
    async with httpx.AsyncClient() as client:
        await client.get(f"{url}/health")
        working = asyncio.create_task(asyncio.to_thread(work))
        while not working.done():
            begin = time.perf_counter()
            (await client.get(f"{url}/health", timeout=PATIENCE_S)).raise_for_status()
            seconds.append(time.perf_counter() - begin)
            await asyncio.sleep(PING_S)
        await working
    return seconds


# The checkpoint of each table: it makes a tile of an image, splits images, or takes images of any size.
TABLES = {
    "first-token": ("whole", bench_turns),
    "large": ("any-size", bench_large),
    "tower": ("whole", bench_tower),
    "streams": ("split", bench_streams),
    "hostile": ("split", bench_hostile),
    "event-loop": ("whole", bench_event_loop),
}


def _rows(arguments: argparse.Namespace, folder: Path) -> Iterator[Rows]:
    rng = np.random.default_rng(time.monotonic_ns())  # a server that runs already may know images of a fixed seed
    if arguments.url:
        yield iter([bench_first_token(arguments.url, arguments.url, arguments.rounds, rng, arguments.side)])
        return
    for tp in arguments.tp:
        for table in arguments.table:
            name, bench = TABLES[table]
            with serving(str(_checkpoint(folder, name)), tp, ("--kv-cache-gib", "1", *arguments.serve)) as server:
                yield bench(server, tp, arguments.rounds, rng)


def _checkpoint(folder: Path, name: str) -> Path:
    """Return a checkpoint in `folder`, which is written when it is not there."""
    if not (folder / name).exists():
        write = grid_vision_model.write if name == "any-size" else vision_model.write
        write(folder)
    return folder / name


def main() -> int:
    """Measure the model on every number of ranks, or a running server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder that keeps the checkpoints for the next run")
    parser.add_argument("--tp", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--table", nargs="+", choices=[*TABLES], default=[*TABLES])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--url", help="a running server, in place of all this")
    parser.add_argument("--side", type=int, default=TILE, help="pixels of a side of the images for --url")
    parser.add_argument("--json", type=Path)
    parser.add_argument("serve", nargs="*", help="options of the server")
    arguments = parser.parse_args()
    with MachineReport("images", arguments.json) as report, tempfile.TemporaryDirectory() as made:
        folder = arguments.model or Path(made)
        for rows in _rows(arguments, folder):
            report.add(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
