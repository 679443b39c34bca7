"""A worker's death, retractions and draft tokens: answers about images have the bits of an undisturbed server."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import (
    checkpoints,
    gemma4_vision,
    gemma_vision,
    grid_vision,
    kimi_vision,
    llama4_vision,
    pixtral,
    vision,
)
from tests.support.image_files import image_part, in_file, pattern
from tests.support.real_server import RealServer

OPTIONS = ("--tp", "2", "--context-length", "256", "--image-memory-gib", "0.05", "--max-images", "4")
PIXELS = {"idefics3": "16384"}  # of a tile; others have at most as many as SmolVLM's
# GiB of 9 pages, of which a request needs 4 in the end.
FEW_PAGES = {"smolvlm": "0.0003", "qwen3_vl": "0.00045"}
SIZES = [(50, 50), (200, 150), (300, 88), (88, 300), (60, 61), (120, 90)]
TOKENS = 64  # of an answer
BEGUN = 40  # tokens of all answers before the worker is killed
KINDS = (vision, grid_vision, gemma_vision, gemma4_vision, llama4_vision, pixtral, kimi_vision)
MOST_PASSES = 6  # measured times decide whether a step drafts, so that one pass may be without


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


def options(name: str) -> tuple[str, ...]:
    return (*OPTIONS, "--max-image-pixels", PIXELS.get(name, "7744"))


def saved(name: str, folder: Path) -> str:
    """Save the model of a case with its tokenizer."""
    (kind,) = (kind for kind in KINDS if name in kind.CASES)
    made = gemma4_vision.build(name) if kind is gemma4_vision else checkpoints.build(kind.CASES[name]())
    return str(kind.save_served(made, folder))


def alone(server: RealServer, asked: list[dict[str, Any]]) -> list[list[Any]]:
    """The answers to one request after the other."""
    found = [each for body in asked for each in asyncio.run(answers(server, [body]))]
    assert {len(each) for each in found} == {TOKENS}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for kind in KINDS for name in kind.CASES if name not in FEW_PAGES])
def test_a_death_changes_no_bit_of_answers_about_images(name: str, tmp_path: Path) -> None:
    asked = requests()
    with RealServer(*options(name), "--kv-cache-gib", "0.05", model=saved(name, tmp_path)) as server:
        undisturbed = alone(server, asked)
        assert asyncio.run(answers(server, asked, server.worker_pids()[1])) == undisturbed
        assert server.metrics()["worker_restarts_total signal"] == 1


@pytest.mark.parametrize("name", ["smolvlm", pytest.param("qwen3_vl", marks=pytest.mark.slow)])
def test_deaths_retractions_and_draft_tokens_change_no_bit_of_answers_about_images(name: str, tmp_path: Path) -> None:
    model, asked = saved(name, tmp_path), requests()
    with RealServer(*options(name), "--kv-cache-gib", "0.05", model=model) as server:
        undisturbed = alone(server, asked)
    # A draft model that could see is given no image.
    few = "--kv-cache-gib", FEW_PAGES[name]
    with RealServer(*options(name), *few, "--draft-model", model, model=model) as server:
        assert asyncio.run(answers(server, asked, server.worker_pids()[1])) == undisturbed
        for _ in range(MOST_PASSES):
            assert asyncio.run(answers(server, asked)) == undisturbed
            metrics = server.metrics()
            accepted = [metrics[f"draft_tokens_total {drafter} accepted"] for drafter in ("suffix", "draft_model")]
            if min(accepted) > 0:
                break
    assert metrics["worker_restarts_total signal"] == 1
    assert metrics["retractions_total"] > 0
    assert min(accepted) > 0
