"""The front end's drafters, each under its own name, change no bit of a model with recurrent layers."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from numaserve.server.config.option_types import DrafterName
from numaserve.server.engine.engine import Engine
from numaserve.server.scheduler.matcher import TokenMatcher
from numaserve.server.scheduler.request import Request
from numaserve.server.structured.matchers.matcher import GrammarMatcher
from numaserve.server.structured.parser_limits import new_matcher
from numaserve.server.structured.vocabulary import Vocabulary
from numaserve.workers.interface.protocol import SamplingParams, TokenLogprobs

from tests.support.checkpoints import VOCAB
from tests.support.plan_limits import with_limits
from tests.support.real_engine import real_engine
from tests.support.same_bits import save_tiny_model, scheduler_config
from tests.support.tokenizer_builders import byte_level_backend, wrap

NEW_TOKENS = 48
LIMITS = scheduler_config(max_slots=8, num_pages=128, max_drafts=9)
CACHED = with_limits(LIMITS, enable_prefix_cache=True, num_snapshots=6)
CROWDED = with_limits(CACHED, num_pages=9, max_step_tokens=33)
TOKENIZER = wrap(byte_level_backend())
LETTERS = {TOKENIZER.encode(letter)[-1]: 30.0 for letter in "qfj"}
SAMPLINGS = (
    SamplingParams(temperature=0.0, logprobs=5),
    SamplingParams(temperature=1.2, top_k=40, seed=2, logprobs=2, repetition_penalty=1.1),
    # Three letters only: every three of them have occurred before, and what follows them is chance.
    SamplingParams(temperature=1.0, seed=1, logprobs=5, logit_bias=LETTERS),
)
# The sampling decides how a text that has to come is cut into tokens. Few drafts of it are rejected, in some runs none.
TEXT = "(the quick brown fox jumps over lazy dogs, [0-9]{2} of them in the street; ){2}"

Answer = list[tuple[int, TokenLogprobs]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("qwen3_5", tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def vocabulary() -> LLTokenizer:
    return Vocabulary.of(TOKENIZER, VOCAB).load()


def requests() -> list[Request]:
    """Return three prompts, each with every sampling."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, VOCAB, length).tolist() for length in (7, 40, 75)]
    return [Request("id", prompt, each, NEW_TOKENS) for prompt in prompts for each in SAMPLINGS]


async def answer_of(engine: Engine, request: Request) -> Answer:
    answer: Answer = []
    async for chunk in engine.admit([request]):
        answer += zip(chunk.token_ids, chunk.logprobs, strict=True)
    return answer


async def answers(engine: Engine, some: list[Request]) -> list[Answer]:
    return list(await asyncio.gather(*(answer_of(engine, request) for request in some)))


async def without_drafts(model: Path, tp: int, some: list[Request]) -> list[Answer]:
    async with real_engine(model, tp, limits=LIMITS) as engine:
        return [await answer_of(engine, request) for request in some]


async def assert_drafts_change_no_bit(
    model: Path, tp: int, name: DrafterName, some: list[Request], alone: list[Answer]
) -> int:
    """Serve `some` twice with the drafter `name`, in several ways. Return the number of draft tokens that were
    rejected."""
    drafts: Counter[tuple[str, bool]] = Counter()
    for limits, overlap in ((LIMITS, True), (CACHED, False), (CROWDED, True)):
        async with real_engine(model, tp, limits=limits, overlap=overlap, speculative=(name,)) as engine:
            for _ in range(2):
                assert await answers(engine, some) == alone
            drafts += engine._scheduler.drafted
    assert drafts[name, True] > 150
    return drafts[name, False]


@pytest.mark.usefixtures("drafts_are_free")
@pytest.mark.parametrize("tp", [1, 2])
async def test_predictions_change_no_bit(model: Path, tp: int) -> None:
    some = requests()
    alone = await without_drafts(model, tp, some)
    predictions = [[abs(token - (index % 5 == 4)) for index, (token, _) in enumerate(answer)] for answer in alone]
    some = [replace(each, prediction=text) for each, text in zip(some, predictions, strict=True)]
    assert await assert_drafts_change_no_bit(model, tp, "prediction", some, alone) > 20


@pytest.mark.usefixtures("drafts_are_free")
@pytest.mark.parametrize("tp", [1, 2])
async def test_repetitions_change_no_bit(model: Path, tp: int) -> None:
    some = requests()
    assert await assert_drafts_change_no_bit(model, tp, "suffix", some, await without_drafts(model, tp, some)) > 20


@pytest.mark.usefixtures("drafts_are_free")
@pytest.mark.parametrize("tp", [1, 2])
async def test_forced_tokens_change_no_bit(model: Path, vocabulary: LLTokenizer, tp: int) -> None:
    grammar = LLMatcher.grammar_from_regex(TEXT)

    def matcher() -> TokenMatcher:
        made = new_matcher(vocabulary, grammar)
        return GrammarMatcher(made, VOCAB, frozenset(vocabulary.eos_tokens), lambda: new_matcher(vocabulary, grammar))

    masked = [replace(each, matcher=matcher) for each in requests()]
    alone = await without_drafts(model, tp, masked)
    await assert_drafts_change_no_bit(model, tp, "grammar", masked, alone)
