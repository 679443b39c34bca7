"""A whole server over fake workers in one event loop: HTTP, the application, the engine, the scheduler, ZeroMQ."""

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import uvloop
from fake_worker import VOCAB
from numaserve.server.adapters.adapters import Adapters
from numaserve.server.answers.formats import reasoning_format, tool_format
from numaserve.server.app.application import ApiContext, ApiLimits
from numaserve.server.config.option_types import DrafterName
from numaserve.server.engine.config import EngineCallbacks, EngineConfig
from numaserve.server.engine.engine import Engine
from numaserve.server.engine.types import GenerationChunk
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.cache.kv_events import KVEventLog
from numaserve.server.scheduler.request import Request
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.service.http import HttpServer
from numaserve.server.speculation.drafter import Drafters
from numaserve.server.supervisor.group import GroupSpec
from numaserve.server.supervisor.memory import RingFactory
from numaserve.server.supervisor.supervisor import Supervisor
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.shm_comm.mask_board import create_mask_board
from numaserve.workers.interface.protocol import Launch, SamplingParams, mask_rows
from word_tokenizer import WordTokenizer

from tests.support.plan_limits import plan_limits

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")
GREEDY = SamplingParams(temperature=0.0)

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What a test may vary."""

    ranks: int = 1
    command: Sequence[str] = (sys.executable, str(FAKE_WORKER))
    faults: Sequence[str] = ()
    overlap: bool = True
    prefix_cache: bool = True
    pages: int = 512
    running: int = 16
    queued: int = 256
    queued_s: float = 600.0
    step_tokens: int = 64
    context: int = 2048
    deadline_s: float = 30.0
    resume_timeout_s: float = 60.0
    beat_s: float | None = None
    ring_factory: RingFactory | None = None
    mask_grace_s: float = 20.0
    mask_patience_s: float = 60.0
    tokenizer: TokenizerProtocol = field(default_factory=WordTokenizer)
    kv_log: KVEventLog | None = None
    drafters: Drafters | None = None
    worker_drafter: str | None = None
    counted_drafters: tuple[DrafterName, ...] = ()  # in /metrics
    adapters: Adapters | None = None
    lora_root: Path | None = None


def make_engine(options: Options, metrics: Metrics, callbacks: EngineCallbacks | None = None) -> Engine:
    limits = plan_limits(
        num_pages=options.pages,
        context_length=options.context,
        max_slots=options.running,
        max_step_tokens=options.step_tokens,
        enable_prefix_cache=options.prefix_cache,
        worker_drafter=options.worker_drafter,
    )
    launches = [
        Launch(
            rank=rank,
            world_size=options.ranks,
            model="fake",
            cpus=[[rank] for rank in range(options.ranks)],
            nodes=[0] * options.ranks,
            weights=[1] * options.ranks,
            capacity=limits.capacity,
            ring_fd=-1,
            ring_nonce=0,
            step_deadline_s=options.deadline_s,
            mask_grace_s=options.mask_grace_s,
        )
        for rank in range(options.ranks)
    ]
    scheduler = Scheduler(limits, options.kv_log, options.drafters)
    config = EngineConfig(
        "fake",
        "0",
        max_queued_requests=options.queued,
        max_queued_s=options.queued_s,
        step_deadline_s=options.deadline_s,
        overlap=options.overlap,
        mask_patience_s=options.mask_patience_s,
        resume_timeout_s=options.resume_timeout_s,
        beat_s=options.beat_s,
        drafters=options.counted_drafters,
    )
    return Engine(
        config,
        Supervisor(
            GroupSpec(
                launches,
                options.ring_factory,
                [*options.command, *options.faults],
                lambda: create_mask_board(mask_rows(options.running), VOCAB),
                adapters=tuple if options.adapters is None else options.adapters.at_launch,
            ),
        ),
        scheduler,
        options.tokenizer,
        metrics,
        callbacks=callbacks,
        adapters=options.adapters,
    )


@dataclass
class Server:
    engine: Engine
    metrics: Metrics
    client: httpx.AsyncClient
    given_up: asyncio.Future[str]
    load: list[tuple[int, int]] = field(default_factory=list)

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"model": "fake", "temperature": 0, **body})

    def metric(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(f"numaserve_{name}", {"model_name": "fake", **labels})
        assert value is not None, name
        return value

    def pages(self) -> dict[str, float]:
        return {state: self.metric("kv_pages", state=state) for state in ("free", "cached", "active")}


def pids_of(engine: Engine) -> list[int]:
    """Process ids of the workers by rank; empty while there is no group."""
    return [worker["pid"] for worker in engine.server_info()["workers"]]


@asynccontextmanager
async def running_engine(options: Options) -> AsyncIterator[Engine]:
    """Only the engine; checks that it leaves no process behind."""
    engine = make_engine(options, Metrics("fake"))
    try:
        await engine.start()
        pids = pids_of(engine)
        yield engine
    finally:
        await engine.stop()
    for pid in pids:
        assert not process_exists(pid)


@asynccontextmanager
async def serving(options: Options) -> AsyncIterator[Server]:
    """The whole server on a free port."""
    metrics = Metrics("fake")
    given_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    load: list[tuple[int, int]] = []
    callbacks = EngineCallbacks(
        load_progress=lambda done, total: load.append((done, total)), given_up=given_up.set_result
    )
    engine = make_engine(options, metrics, callbacks)
    context = ApiContext(
        engine=engine,
        tokenizer=options.tokenizer,
        metrics=metrics,
        model_name="fake",
        model_path="fake",
        version="0",
        limits=ApiLimits(context_length=options.context, vocab_size=VOCAB),
        takes_predictions=True,
        adapters=options.adapters or Adapters(),
        lora_root=options.lora_root,
        is_local=True,
        tool_format=tool_format(None, options.tokenizer.chat_template),
        reasoning_format=reasoning_format(None, options.tokenizer.chat_template),
    )
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        http = HttpServer(context, [listener])
        task = asyncio.create_task(http.run_until_stopped())
        limits = httpx.Limits(max_connections=None)
        try:
            await engine.start()
            async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
                yield Server(engine, metrics, client, given_up, load)
        finally:
            await engine.stop()
            http.stop()
            await task


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something that no event tells of."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def generate(engine: Engine, prompt: list[int], count: int, **fields: Any) -> list[GenerationChunk]:
    """All chunks of one request to the engine."""
    sampling = fields.pop("sampling", GREEDY)
    return [chunk async for chunk in engine.admit([Request("id", prompt, sampling, count, **fields)])]


def tokens_of(chunks: list[GenerationChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a test's scenario in the event loop that the server uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scenario)


async def gather(*jobs: Awaitable[T]) -> list[T]:
    return list(await asyncio.gather(*jobs))


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def events_of(text: str) -> list[Any]:
    """The JSON payloads of a server-sent event stream, without the final [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [msgspec.json.decode(line) for line in lines[:-1]]


# Requests whose answers tell of all that a step may bring.
TELLING_BODIES: dict[str, dict[str, object]] = {
    "sequences": {"n": 3, "temperature": 1.0, "seed": 7, "logprobs": 3},
    "echo": {"echo": True, "logprobs": 2, "prompt": list(range(20, 160))},
    "stop": {"stop": ["w5"], "stream_options": {"include_usage": True}, "stream": True},
    "penalties": {"frequency_penalty": 0.5, "min_tokens": 30, "return_token_ids": True},
}


def without_ids(text: str) -> str:
    """An answer without what is another each time."""
    return re.sub(r'"id":"[^"]*"|"created":[0-9]+|"cached_tokens":[0-9]+', "", text)
