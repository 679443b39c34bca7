"""A server of a tree, for measurements that alternate between trees."""

import asyncio
import random
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.support.tree_server import TreeServer

_PATIENCE_S = 300.0
_VOCABULARY = 1000  # prompts are random, so that no prefix is cached; each model has these tokens


class PairServer(TreeServer):
    """A server of the tree at `root`, asked over HTTP alone: what trees of different ages have in common."""

    def __init__(self, root: Path, model: str, tp: int) -> None:
        self._random = random.Random(0)
        options = (model, "--tp", str(tp), "--weights-cache-gib", "0", "--kv-cache-gib", "1")
        super().__init__(root, Path(tempfile.mkdtemp(prefix="np-")), options)

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds of a prompt that is not cached."""
        begin = time.perf_counter()
        answer = httpx.post(f"{self.url}/v1/completions", json=self._body(tokens, 1), timeout=_PATIENCE_S)
        answer.raise_for_status()
        return time.perf_counter() - begin

    def decode_s(self, rows: int, tokens: int) -> tuple[float, float]:
        """Return the median seconds of a step of `rows` streams, and the front end's CPU seconds per token.

        The mean was rejected: a pause of the machine within half a second of steps doubles it.
        """
        cpu = self._front_end_s()
        seconds = asyncio.run(self._streams(rows, tokens))
        return seconds, (self._front_end_s() - cpu) / (rows * tokens)

    async def _streams(self, rows: int, tokens: int) -> float:
        async with httpx.AsyncClient(timeout=_PATIENCE_S) as client:
            times = await asyncio.gather(*(self._stream(client, tokens) for _ in range(rows)))
        begin, end = max(each[0] for each in times), min(each[-1] for each in times)  # while all of them run
        together = [[moment for moment in each if begin <= moment <= end] for each in times]
        return statistics.median(after - before for each in together for before, after in pairwise(each))

    async def _stream(self, client: httpx.AsyncClient, tokens: int) -> list[float]:
        body = self._body(16, tokens, stream=True)
        moments = []
        async with client.stream("POST", f"{self.url}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    moments.append(time.perf_counter())
        return moments

    def _body(self, prompt: int, tokens: int, **more: Any) -> dict[str, Any]:
        ids = self._random.choices(range(3, _VOCABULARY), k=prompt)
        return {"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}

    def _front_end_s(self) -> float:
        # The clock of clock_getcpuclockid(3). /proc counts in hundredths of a second, which is too coarse for a round.
        return time.clock_gettime(~self.process.pid << 3 | 2)
