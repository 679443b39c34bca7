"""``python -m tests.demo_lora.race [--seconds N] [--seed N]``: loads and unloads of adapters while workers die.

Eight clients load, unload and ask at random for a minute, and a worker is killed every few seconds. Names that begin
with "alpha" always have the weights of one adapter, those with "beta" the weights of the other, and "either" has now
these, now those. Each answer must have the tokens and log-probabilities of its adapter, bit for bit. Otherwise it must
be an error that a client can expect. At the end all places must be free again. The adapters are those of
`make demo-lora`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter

import httpx
import psutil

from tests.demo_lora.__main__ import FOLDER, QUESTIONS, bits, serving
from tests.support.tree_server import TreeServer

_CLIENTS, _PLACES, _KILL_S = 8, 3, 9.0
_NAMES = ("alpha-1", "alpha-2", "beta-1", "beta-2", "either")
_WEIGHTS = ("alpha", "beta")
_BASE = "demo"
_PATIENCE_S = 120.0
# A name that is loaded already, is being loaded, or is not there; no place; and workers that are replaced.
_EXPECTED = {400, 404, 409, 503}

Bits = list[tuple[str, float]]


class Race:
    """Clients of one server, and what they have seen."""

    def __init__(self, server: TreeServer, known: dict[tuple[str, str], Bits], seed: int, kill_s: float) -> None:
        self._server, self._known, self._kill_s = server, known, kill_s
        self._random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self, seconds: float) -> None:
        """Let all clients work for some time, and kill workers."""
        end = time.monotonic() + seconds
        async with httpx.AsyncClient(base_url=self._server.url, timeout=_PATIENCE_S) as client:
            await asyncio.gather(*(self._work(client, end) for _ in range(_CLIENTS)), self._kill(end))
            for name in _NAMES:
                await self._post(client, "unload", "/v1/unload_lora_adapter", {"lora_name": name})
            await self._ask(client, _BASE)
            for index in range(_PLACES):  # all places are free
                body = {"lora_name": f"last-{index}", "lora_path": str((FOLDER / _WEIGHTS[0]).resolve())}
                if not await self._post(client, "last load", "/v1/load_lora_adapter", body):
                    self.wrong.append(f"place {index} is not free")

    async def _work(self, client: httpx.AsyncClient, end: float) -> None:
        while time.monotonic() < end:
            name = self._random.choice(_NAMES)
            draw = self._random.random()
            if draw < 0.25:
                weights = self._random.choice(_WEIGHTS) if name == "either" else name.partition("-")[0]
                body = {"lora_name": name, "lora_path": str((FOLDER / weights).resolve()), "load_inplace": draw < 0.1}
                await self._post(client, "load", "/v1/load_lora_adapter", body)
            elif draw < 0.4:
                await self._post(client, "unload", "/v1/unload_lora_adapter", {"lora_name": name})
            else:
                await self._ask(client, name if draw < 0.9 else _BASE)

    async def _ask(self, client: httpx.AsyncClient, name: str) -> None:
        question = self._random.choice(QUESTIONS)
        body = {"model": name, "messages": [{"role": "user", "content": question}]}
        body |= {"max_tokens": 12, "temperature": 0, "logprobs": True}
        reply = await client.post("/v1/chat/completions", json=body)
        if reply.status_code != httpx.codes.OK:
            self._note("answer", reply)
            return
        found = bits(reply.json())
        allowed = _WEIGHTS if name == "either" else (name.partition("-")[0],)
        matches = [each for each in allowed if self._known[each, question] == found]
        self.seen[f"answers of {matches[0] if matches else 'nobody'}"] += 1
        if not matches:
            self.wrong.append(f"{name} answered {found}")

    async def _post(self, client: httpx.AsyncClient, what: str, path: str, body: dict[str, object]) -> bool:
        reply = await client.post(path, json=body)
        self._note(what, reply)
        return reply.status_code == httpx.codes.OK

    def _note(self, what: str, reply: httpx.Response) -> None:
        self.seen[f"{what} {reply.status_code}"] += 1
        if reply.status_code != httpx.codes.OK and reply.status_code not in _EXPECTED:
            self.wrong.append(f"{what}: {reply.status_code} {reply.text[:200]}")

    async def _kill(self, end: float) -> None:
        while time.monotonic() + self._kill_s < end:
            await asyncio.sleep(self._kill_s)
            children = psutil.Process(self._server.process.pid).children(recursive=True)
            workers = [each for each in children if "numaserve.workers.process.main" in each.cmdline()]
            if workers:
                os.kill(self._random.choice(workers).pid, signal.SIGKILL)
                self.seen["killed workers"] += 1


def main() -> int:
    """Run the race, print what was seen, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tp", default="2")
    parser.add_argument("--kill", type=float, default=_KILL_S)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    asked = parser.parse_args()
    known = asyncio.run(_known(asked.tp))
    with serving("--max-loras", str(_PLACES), "--lora-root", str(FOLDER.resolve()), "--tp", asked.tp) as server:
        race = Race(server, known, asked.seed, asked.kill)
        asyncio.run(race.run(asked.seconds))
    print(f"seed {asked.seed}: {', '.join(f'{what}: {count}' for what, count in sorted(race.seen.items()))}")
    for each in race.wrong[:10]:
        print(f"wrong: {each}")
    return int(bool(race.wrong))


async def _known(tp: str) -> dict[tuple[str, str], Bits]:
    """The answers to all questions of the base and of both adapters, on a server on which nothing else happens."""
    found = {}
    options = [part for name in _WEIGHTS for part in ("--lora", f"{name}={(FOLDER / name).resolve()}")]
    with serving(*options, "--tp", tp) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=_PATIENCE_S) as client:
            for name in (_BASE, *_WEIGHTS):
                for question in QUESTIONS:
                    body = {"model": name, "messages": [{"role": "user", "content": question}]}
                    body |= {"max_tokens": 12, "temperature": 0, "logprobs": True}
                    reply = (await client.post("/v1/chat/completions", json=body)).raise_for_status()
                    found[name, question] = bits(reply.json())
    return found


if __name__ == "__main__":
    sys.exit(main())
