"""`numaserve serve --draft-model` with an assistant of Gemma 4: neither its drafts nor a death change an answer."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support import gemma4, tokenizer_builders
from tests.support.real_server import RealServer
from tests.support.same_bits import save_tiny_model, tiny_model

OPTIONS = ("--tp", "2", "--kv-cache-gib", "0.05", "--context-length", "512")
TOKENS = 120


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_model("gemma4", tmp_path_factory.mktemp("gemma4"))
    tokenizer_builders.byte_level_backend().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def assistant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gemma4.save_assistant(tiny_model("gemma4").config, tmp_path_factory.mktemp("assistant"))


def answers(server: RealServer) -> list[dict[str, Any]]:
    """Greedy ones and sampled ones, with log-probabilities."""
    prompts = (("Once upon a time", 0), ("The quick brown fox " * 12, 0), ("def f(x: int)", 1))
    received = [
        server.complete(prompt, TOKENS, temperature=temperature, seed=5, logprobs=3).json()["choices"][0]
        for prompt, temperature in prompts
    ]
    return [{name: each[name] for name in ("text", "logprobs", "finish_reason")} for each in received]


def test_an_assistant_changes_no_answer(model: Path, assistant: Path) -> None:
    with RealServer(*OPTIONS, model=str(model)) as server:
        alone = answers(server)
        with server.stream(TOKENS) as payloads:
            story = list(payloads)
    with RealServer(*OPTIONS, "--draft-model", str(assistant), model=str(model)) as server:
        assert answers(server) == alone
        drafted = server.metrics()
        assert sum(drafted[f"draft_tokens_total draft_model {outcome}"] for outcome in ("accepted", "rejected")) > 10
        with server.stream(TOKENS) as payloads:
            first = [next(payloads) for _ in range(3)]
            os.kill(server.worker_pids()[1], signal.SIGKILL)
            assert texts([*first, *payloads]) == texts(story)


def texts(payloads: list[str]) -> str:
    """The text of a stream without its first event."""
    events = (json.loads(each) for each in payloads if each != "[DONE]")
    return "".join(choice["text"] for event in events for choice in event["choices"])
