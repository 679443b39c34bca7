"""The runs of a load: the dialect of the server, the requests of the workload, and their outcomes."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numaserve.server.loadtest.client import Client
from numaserve.server.loadtest.options import DatasetName, Traffic, Workload
from numaserve.server.loadtest.probe import Probed, probe
from numaserve.server.loadtest.report.speculation import Speculation, speculation_of
from numaserve.server.loadtest.target import Target
from numaserve.server.loadtest.workload.dataset import make_requests
from numaserve.server.loadtest.workload.load import Done, arrivals_of, run_load
from numaserve.server.loadtest.workload.prompts import (
    CountTokens,
    TokenFiller,
    WordFiller,
    estimate_tokens,
    random_prompt,
)
from numaserve.server.loadtest.workload.requests import BenchRequest, Outcome
from numaserve.workers.interface.errors import OperatorError

_WARMUP_OUTPUT = 16
_WARMUP, _ARRIVALS = 1, 2  # random streams in addition to that of the dataset


@dataclass(frozen=True)
class Run:
    """The outcomes of one run."""

    requests: list[BenchRequest]
    outcomes: list[Outcome]
    duration_s: float
    speculation: Speculation | None  # of the server during the run, all clients included; None if not reported


@dataclass
class Bench:
    """A server that is ready to be measured."""

    client: Client
    workload: Workload
    notes: list[str]
    count_tokens: CountTokens | None = None  # None: tokens cannot be counted

    @classmethod
    async def connect(cls, target: Target, workload: Workload, traffic: Traffic) -> Bench:
        """Determine model, dialect and tokenizer. Raises `OperatorError` if the server does not answer."""
        model = traffic.model or await target.model()
        wants_text = workload.dataset_name in (DatasetName.RANDOM, DatasetName.SHAREGPT)
        found: Probed = await probe(target, model, traffic, token_ids=not wants_text)
        bench = cls(Client(target, model, found.dialect, traffic), workload, found.notes)
        if not found.dialect.token_ids:
            await bench._find_tokenizer()
        return bench

    async def use_text(self) -> None:
        """Send prompts as text although the server understands token ids."""
        if self.client.dialect.token_ids:
            self.client = replace(self.client, dialect=replace(self.client.dialect, token_ids=False))
            await self._find_tokenizer()

    async def requests(self, seed: int) -> list[BenchRequest]:
        """Return the requests of one run."""
        counter = self.count_tokens or estimate_tokens
        if self.client.dialect.token_ids:
            return await make_requests(self.workload, TokenFiller(self.client.traffic.vocab_size), counter, seed)
        return await make_requests(self.workload, WordFiller(self.count_tokens), counter, seed)

    async def warm_up(self, requests: Sequence[BenchRequest], seed: int) -> None:
        """Send other prompts of the same length, so that no measured prompt gets into a cache.

        Raises `OperatorError` if the server refuses them, because it would refuse the measured ones too.
        """
        length = int(statistics.median(request.input_tokens for request in requests))
        rng = np.random.default_rng([seed, _WARMUP])
        for _ in range(self.client.traffic.warmup_requests):
            prompt = await random_prompt(
                length,
                rng,
                token_ids=self.client.dialect.token_ids,
                vocab_size=self.client.traffic.vocab_size,
                count_tokens=self.count_tokens,
            )
            request = BenchRequest(prompt, length, _WARMUP_OUTPUT)
            outcome = await self.client.complete(request)
            if outcome.error is not None:
                raise OperatorError(f"{self.client.target.base_url}: the warm-up request failed: {outcome.error}")

    async def run(self, requests: list[BenchRequest], rate: float | None, seed: int, done: Done) -> Run:
        """Send the requests and return their outcomes."""
        if self.client.traffic.flush_cache:
            await self.client.target.flush_cache()
        arrivals = arrivals_of(requests, rate, np.random.default_rng([seed, _ARRIVALS]))
        limit = self.client.traffic.max_concurrency
        before = speculation_of(await self.client.target.metrics())
        outcomes, seconds = await run_load(self.client.complete, requests, arrivals, max_concurrency=limit, done=done)
        after = None if before is None else speculation_of(await self.client.target.metrics())
        return Run(requests, outcomes, seconds, None if before is None or after is None else after.since(before))

    async def _find_tokenizer(self) -> None:
        traffic = self.client.traffic
        self.count_tokens = _local_counter(traffic.tokenizer) if traffic.tokenizer else await self._remote_counter()
        if self.count_tokens is None:
            self.notes.append("the server does not count tokens and --tokenizer is not set: lengths are estimates")

    async def _remote_counter(self) -> CountTokens | None:
        target, model = self.client.target, self.client.model
        if await target.count_tokens(model, "a") is None:
            return None

        async def count(text: str) -> int:
            tokens = await target.count_tokens(model, text)
            if tokens is None:
                raise OperatorError(
                    f"{target.base_url} counts the tokens of some texts and not of others: set --tokenizer"
                )
            return tokens

        return count


def _local_counter(path: Path) -> CountTokens:
    # Imported here only, because the tokenizer's libraries are slow to import.
    from numaserve.server.tokenizer import load_tokenizer  # noqa: PLC0415

    tokenizer = load_tokenizer(path)

    async def count(text: str) -> int:
        return len(await asyncio.to_thread(tokenizer.encode, text))

    return count
