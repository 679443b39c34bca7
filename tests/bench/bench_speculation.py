"""What speculation gains: a server without it and one with it are asked the same by turns, and have to answer the same.

python tests/bench/bench_speculation.py [--model demo | --larger] [--streams 1 4 16] [--rounds 3] [--reserve-core]
                                          [--json FILE]

Kinds of work: a text whose spelling is to be corrected, without and with OpenAI's `prediction` of it, facts to be put
as JSON, without and with a schema, code that repeats itself, and free chat, greedy and at a temperature of 0.7. No two
requests of a row are alike, and rows have a `cache_salt` each: what a server has seen of an answer would make the next
one free. `speed` is tokens a second with by without, the median over rounds, and `decode` the same behind the first
token of each answer; `accepted` is the acceptance rate, and `drafted` the part of all tokens that were draft tokens.
With `--larger` the demo is the draft model of one of a billion parameters that says nearly the same (larger_demo.py).
With `--reserve-core` the front end has a core that no worker uses, as it should where there are many.
"""

import argparse
import asyncio
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from bench_serving import Samples, Server, growth, serving
from larger_demo import save_larger
from misspelt import misspelt_text
from numaserve.server.cli.bench_report import MachineReport
from numaserve.server.loadtest.report.speculation import Speculation, speculation_of
from numaserve.workers.bench.rows import Row, Rows
from numaserve.workers.weights.hub import resolve_model

TOKENS = 160
REQUESTS = 2  # of each stream, but
LEAST_REQUESTS = 16  # of all
OPTIONS = ("--kv-cache-gib", "0.5")
FILLING = 6  # requests of so many words and numbers each, which take more pages than there are
WORDS = 750
NOUNS = ("river", "garden", "teacher", "window", "engine", "letter", "bridge", "doctor", "market", "forest", "kitchen")
NAMES = ("Anna", "Boris", "Carla", "David", "Elena", "Frank", "Greta", "Hugo", "Irene", "Jonas", "Karin", "Luis")
CITIES = ("Oslo", "Porto", "Lyon", "Turin", "Bergen", "Graz", "Ghent", "Malmo", "Split", "Basel")
EDIT = "Correct the spelling of this text and change nothing else:\n\n"
PERSON = {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}}
OBJECT = {"type": "object", "properties": PERSON, "required": list(PERSON), "additionalProperties": False}
SCHEMA = {"name": "people", "schema": {"type": "array", "items": OBJECT}}
SUBJECTS = ("history", "cooking", "astronomy", "gardening", "music", "bridges", "volcanoes", "chess", "bees", "trains")


Body = dict[str, Any]


def asking(text: str, **fields: Any) -> Body:
    """The body of a request."""
    return {"messages": [{"role": "user", "content": text}], **fields}


def edit(chance: random.Random) -> Body:
    """A text of which almost all comes again."""
    return asking(f"{EDIT}{misspelt_text(chance)}")


def edit_as_predicted(chance: random.Random) -> Body:
    """The same, with the text as the prediction."""
    text = misspelt_text(chance)
    return asking(f"{EDIT}{text}", prediction={"type": "content", "content": text})


def json_of_facts(chance: random.Random) -> Body:
    """Facts that come again in another form."""
    people = [
        f"{name} is {chance.randrange(20, 80)} years old and lives in {chance.choice(CITIES)}."
        for name in chance.sample(NAMES, 5)
    ]
    return asking("Write these people as a JSON list of objects with the keys name, age and city. " + " ".join(people))


def json_by_schema(chance: random.Random) -> Body:
    """The same, by a schema."""
    return json_of_facts(chance) | {"response_format": {"type": "json_schema", "json_schema": SCHEMA}}


def code(chance: random.Random) -> Body:
    """Code whose parts are alike."""
    fields = ", ".join(chance.sample(NOUNS, 5))
    return asking(f"Write a Python class with the fields {fields}, and for each of them a getter and a setter.")


def chat(chance: random.Random) -> Body:
    """Nothing that was said before."""
    return asking(
        f"Tell {chance.choice(NAMES)} from {chance.choice(CITIES)} something about {chance.choice(SUBJECTS)}."
    )


KINDS: dict[str, Callable[[random.Random], Body]] = {
    "edit": edit,
    "edit, predicted": edit_as_predicted,
    "json": json_of_facts,
    "json by schema": json_by_schema,
    "code": code,
    "chat": chat,
}


async def _ask(server: Server, bodies: Sequence[Body], streams: int, temperature: float) -> tuple[list[str], int]:
    """The answers, and how many tokens they have."""
    limits, gate = httpx.Limits(max_connections=None), asyncio.Semaphore(streams)

    async def one(asked: Body) -> dict[str, Any]:
        body = {"max_tokens": TOKENS, "temperature": temperature, "seed": 5, **asked}
        async with gate:
            return dict((await client.post("/v1/chat/completions", json=body)).raise_for_status().json())

    async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits) as client:
        answers = await asyncio.gather(*map(one, bodies))
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    return texts, sum(answer["usage"]["completion_tokens"] for answer in answers)


def _fill(server: Server) -> None:
    """Have each page of the KV cache used once: in some virtual machines the first touch of memory takes so long that
    it would be most of what the first row shows."""
    texts = (" ".join(f"{name} {each}" for each in range(WORDS)) for name in NAMES[:FILLING])
    asyncio.run(_ask(server, [asking(text, max_tokens=1) for text in texts], 1, 0.0))


def _verified(server: Server) -> Speculation:
    """The counts of draft tokens so far."""
    found = speculation_of(httpx.get(f"{server.url}/metrics").text.splitlines())
    assert found is not None
    return found


def _gap(before: Samples, after: Samples) -> float:
    """Seconds between two tokens, on average."""
    name = "inter_token_latency_seconds"
    return growth(before, after, f"{name}_sum") / growth(before, after, f"{name}_count")


def bench(off: Server, on: Server, kinds: Sequence[str], streams: Sequence[int], rounds: int) -> Rows:
    """Every kind of work, with every number of streams; what is asked in one row is not known in another."""
    for kind, temperature, count in itertools.product(kinds, (0.0, 0.7), streams):
        speeds, tokens, before = [], 0, _verified(on)
        samples = [server.samples() for server in (off, on)]
        apart = {"cache_salt": f"{kind} {temperature} {count}"}
        requests = max(REQUESTS * count, LEAST_REQUESTS)
        for number in range(rounds):
            seeds = range(number * requests, (number + 1) * requests)
            bodies = [KINDS[kind](random.Random(seed)) | apart for seed in seeds]
            seconds, answers = [], []
            for server in (off, on):
                begin = time.perf_counter()
                texts, said = asyncio.run(_ask(server, bodies, count, temperature))
                seconds.append(time.perf_counter() - begin)
                answers.append(texts)
            assert answers[0] == answers[1], "the answers differ"
            speeds.append(seconds[0] / seconds[1])
            tokens += said
        grown = _verified(on).since(before)
        assert grown is not None, "the server has begun anew"
        slow, fast = map(_gap, samples, (server.samples() for server in (off, on)))
        figures = {
            "speed": statistics.median(speeds),
            "least": min(speeds),
            "most": max(speeds),
            "decode": slow / fast,
            "accepted": grown.acceptance or 0.0,
            "drafted": grown.accepted / tokens,
        }
        yield Row(
            "with speculation by without", {"work": kind, "temperature": str(temperature), "streams": count}, figures
        )


def main() -> int:
    """Measure every kind of work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--larger", action="store_true")
    parser.add_argument("--speculative", nargs="+", default=["auto"])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reserve-core", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    options = [*OPTIONS, "--reserve-core"] if arguments.reserve_core else OPTIONS
    drafting = [option for each in arguments.speculative for option in ("--speculative", each)]
    with ExitStack() as stack:
        report = stack.enter_context(MachineReport("speculation", arguments.json))
        model = arguments.model
        if arguments.larger:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="numaserve-bench-"))
            model = os.fspath(save_larger(resolve_model("demo"), Path(folder) / "larger"))
            drafting += ["--draft-model", "demo"]
        off = stack.enter_context(serving(model, 1, options))
        on = stack.enter_context(serving(model, 1, [*options, *drafting]))
        for each in (off, on):
            _fill(each)
        report.add(bench(off, on, arguments.kinds, arguments.streams, arguments.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
