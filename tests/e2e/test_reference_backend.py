"""`--backend reference` next to the kernels: the serve command on a tiny model, both over HTTP."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any

import numpy as np
import pytest

from tests.support.chat_model import write_model
from tests.support.demo import ALICE
from tests.support.real_server import RealServer

# A prompt takes several steps, several prompts share one, and their pages lie where they are free. Activations in int8,
# this file's default, would round so much that answers part sooner.
SMALL_STEPS = ("--chunked-prefill-size", "24", "--kv-cache-gib", "0.1", "--activation-dtype", "bf16")
PROMPTS = [ALICE[at : at + 100] for at in (0, 400, 800)] + ["The capital of France is"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("reference")))


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[RealServer]:
    with RealServer("--backend", "reference", *SMALL_STEPS, model=model) as server:
        yield server


def answers(server: RealServer) -> list[dict[str, Any]]:
    """To all prompts at once, with the log-probabilities of prompt and answer."""
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        found = list(threads.map(lambda prompt: server.complete(prompt, 6, logprobs=1, echo=True), PROMPTS))
    return [answer.json()["choices"][0] for answer in found]


def while_equal(one: dict[str, Any], other: dict[str, Any]) -> list[tuple[float, float]]:
    """Both log-probabilities of each token but the first, as far as the tokens are the same: an answer may part where
    two tokens are about as likely."""
    columns = [each["logprobs"][key][1:] for key in ("tokens", "token_logprobs") for each in (one, other)]
    same = takewhile(lambda row: row[0] == row[1], zip(*columns, strict=True))
    return [(mine, theirs) for _, _, mine, theirs in same]


def test_answers_are_near_to_those_of_the_kernels(server: RealServer, model: str) -> None:
    found = answers(server)
    with RealServer("--tp", "1", *SMALL_STEPS, model=model) as native:
        expected = answers(native)
    assert found[-1]["text"] == expected[-1]["text"]
    pairs = [pair for one, other in zip(found, expected, strict=True) for pair in while_equal(one, other)]
    assert len(pairs) > 200
    # Each is about as far from exact numbers (docs/accuracy.md); the same bits would mean that kernels had answered.
    assert 0 < np.abs(np.diff(pairs)).mean() < 0.015


def test_a_prefix_that_is_cached_is_read_by_its_page_table(server: RealServer) -> None:
    begin, fresh = ALICE[1200:1350], server.complete(ALICE[1200:1400], 6).json()
    server.complete(begin + " Something else", 1)
    again = server.complete(ALICE[1200:1400], 6).json()
    assert again["choices"][0]["text"] == fresh["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


def test_it_says_at_the_start_what_it_is(server: RealServer) -> None:
    assert "differ slightly" in server.log.read_text()
    info = server.info()
    assert info["backend"] == info["workers"][0]["isa"] == "reference"
