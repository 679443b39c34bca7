"""A worker's death, retractions and draft tokens: answers about images have the bits of an undisturbed server."""

import asyncio
import json
import os
import signal
from typing import Any

import httpx
import pytest

from tests.support import checkpoints, vision
from tests.support.image_files import image_part, in_file, pattern
from tests.support.real_server import RealServer

OPTIONS = ("--tp", "2", "--context-length", "256", "--image-memory-gib", "0.05", "--max-images", "4")
FEW_PAGES = ("--kv-cache-gib", "0.0003")  # 9, of which a request needs 4 in the end
SIZES = [(50, 50), (200, 150), (300, 88), (88, 300), (60, 61), (120, 90)]
TOKENS = 64  # of an answer
BEGUN = 40  # tokens of all answers before the worker is killed


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A model that sees, and its language model alone: its draft model."""
    folder, draft = (tmp_path_factory.mktemp(name) for name in ("smolvlm", "draft"))
    model = checkpoints.build(vision.CASES["smolvlm"]())
    vision.save_served(model, folder)
    checkpoints.save(vision.text_model(model), draft)
    vision.save_tokenizer(draft)
    return str(folder), str(draft)


def requests() -> list[dict[str, Any]]:
    """Greedy requests and sampled ones, each with its own image; most have the first one's image after it."""
    first, *_ = files = [in_file(pattern(*size)) for size in SIZES]
    return [
        {
            "messages": [
                {"role": "user", "content": [*map(part, images), {"type": "text", "text": f"Story {index}."}]}
            ],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "temperature": index % 2,
            "seed": index,
            "logprobs": True,
            "top_logprobs": 3,
            "stream": True,
        }
        for index, images in enumerate([file, first] if index % 3 else [file] for index, file in enumerate(files))
    ]


def part(file: bytes) -> dict[str, Any]:
    return image_part(file, detail="low")  # one tile


def text(index: int) -> dict[str, Any]:
    return {"type": "text", "text": f"Story {index}."}


async def answers(server: RealServer, asked: list[dict[str, Any]], victim: int | None = None) -> list[list[Any]]:
    """The tokens of each answer with their log-probabilities. The worker `victim` is killed when the answers have some
    tokens."""
    found: list[list[Any]] = [[] for _ in asked]

    async def read(client: httpx.AsyncClient, index: int) -> None:
        nonlocal victim
        async with client.stream("POST", "/v1/chat/completions", json=asked[index]) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        found[index] += (choice["logprobs"] or {}).get("content", [])
                if victim is not None and sum(map(len, found)) >= BEGUN:
                    os.kill(victim, signal.SIGKILL)
                    victim = None

    async with server.client() as client:
        await asyncio.gather(*(read(client, index) for index in range(len(asked))))
    return found


def test_deaths_retractions_and_draft_tokens_change_no_bit_of_answers_about_images(models: tuple[str, str]) -> None:
    model, draft = models
    asked = requests()
    with RealServer(*OPTIONS, "--kv-cache-gib", "0.05", model=model) as server:
        undisturbed = [each for body in asked for each in asyncio.run(answers(server, [body]))]
    assert {len(each) for each in undisturbed} == {TOKENS}
    with RealServer(*OPTIONS, *FEW_PAGES, "--draft-model", draft, model=model) as server:
        for victim in (server.worker_pids()[1], None):
            assert asyncio.run(answers(server, asked, victim)) == undisturbed
        metrics = server.metrics()
    assert metrics["worker_restarts_total signal"] == 1
    assert metrics["retractions_total"] > 0
    for drafter in ("suffix", "draft_model"):
        assert metrics[f"draft_tokens_total {drafter} accepted"] > 0
