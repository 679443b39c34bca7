"""An engine that computes whole prompts on real workers: the same embeddings whatever the load."""

import asyncio
import random
from pathlib import Path

import pytest
from numaserve.server.engine.engine import Engine
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.request import Pooling, Request
from numaserve.workers.interface.protocol import PAGE_SIZE, SamplingParams
from numaserve.workers.interface.settings import ModelSettings

from tests.support import checkpoints
from tests.support.real_engine import real_engine
from tests.support.same_bits import CONTEXT, save_tiny_model, scheduler_config

LENGTHS = (1, 2, 9, 31, 32, 33, 50, 96, 97, 150, 300, CONTEXT)
LIMITS = scheduler_config(whole_prompts=True, max_step_tokens=96, max_slots=8, num_pages=-(-CONTEXT // PAGE_SIZE))
EVERYONE = (Client("a"), Client("b", 3.0))


def requests(count: int) -> list[Request]:
    """Requests of each length, as the first tokens of the same text."""
    text = random.Random(5).choices(range(3, checkpoints.VOCAB), k=CONTEXT)
    lengths = [LENGTHS[index % len(LENGTHS)] for index in range(count)]
    return [
        Request(f"{index}", text[:length], SamplingParams(), 0, pooling=Pooling(), client=EVERYONE[index % 2])
        for index, length in enumerate(lengths)
    ]


async def embedding(engine: Engine, request: Request) -> bytes:
    (*_, last) = [chunk async for chunk in engine.admit([request])]
    assert last.finish_reason is not None
    return last.embedding


async def abandoned(engine: Engine, request: Request, pause: float) -> None:
    """Admit a request, and leave after `pause` seconds."""
    stream = engine.admit([request])
    await asyncio.sleep(pause)
    await stream.aclose()


@pytest.mark.parametrize("overlap", [True, False])
async def test_a_crowd_gets_the_embeddings_of_each_alone_and_leaves_no_page(tmp_path: Path, overlap: bool) -> None:
    model, draw = save_tiny_model("llama", tmp_path), random.Random(6)
    options = {"limits": LIMITS, "step_tokens": CONTEXT, "settings": ModelSettings(pooled=True), "overlap": overlap}
    async with real_engine(model, **options) as engine:  # type: ignore[arg-type]
        alone = [await embedding(engine, request) for request in requests(len(LENGTHS))]
        assert len(set(alone)) == len(LENGTHS)
        leaving = [abandoned(engine, each, draw.random() / 50) for each in requests(24)]
        found = await asyncio.gather(*(embedding(engine, each) for each in requests(48)), *leaving)
        assert found[:48] == alone * 4
        load = engine.load()
        assert (load.running, load.waiting, load.tokens_used) == (0, 0, 0)
