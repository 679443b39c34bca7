"""What clients of a router ask, as texts: routers look for equal beginnings in these, not in token ids."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx
from numaserve.server.loadtest.workload.prompts import WORDS

# Of four servers each holds the prefixes of its sixth groups and a few more, and less than a third of all.
GROUPS, QUESTIONS, SYSTEM_WORDS, QUESTION_WORDS = 24, 12, 318, 6
CONVERSATIONS, TURNS, TURN_WORDS = 12, 8, 40
AT_ONCE = 8
ANSWER_TOKENS = 4

Messages = list[dict[str, str]]
Ask = Callable[[Messages], Awaitable[str | None]]  # the answer; None where there is none


@dataclass
class Tally:
    """What became of requests."""

    answered: int = 0
    failed: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    asked: list[Messages] = field(default_factory=list)  # what was answered, each with its answer


async def shared_prefixes(ask: Ask, seed: int, *, questions: int = QUESTIONS) -> None:
    """Questions in groups, each behind a system prompt of its own, in any order: generated-shared-prefix."""
    chance = random.Random(seed)
    prompts = [
        [_said("system", system), _said("user", _words(chance, QUESTION_WORDS))]
        for system in [_words(chance, SYSTEM_WORDS) for _ in range(GROUPS)]
        for _ in range(questions)
    ]
    chance.shuffle(prompts)
    await _some_at_once([_once(ask, prompt) for prompt in prompts])


async def conversations(ask: Ask, seed: int) -> None:
    """Conversations of several turns, each of which begins with all that was said before."""
    chance = random.Random(seed)
    turns = [[_words(chance, TURN_WORDS) for _ in range(TURNS)] for _ in range(CONVERSATIONS)]
    await _some_at_once([_conversation(ask, each) for each in turns])


def asker(client: httpx.AsyncClient, model: str, tally: Tally) -> Ask:
    """Asks through `client` and counts in `tally`."""

    async def ask(messages: Messages) -> str | None:
        body = {"model": model, "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
        try:
            answer = await client.post("/v1/chat/completions", json=body)
        except httpx.HTTPError:
            tally.failed += 1
            return None
        tally.statuses[answer.status_code] += 1
        if answer.status_code != 200:
            tally.failed += 1
            return None
        tally.answered += 1
        said = str(answer.json()["choices"][0]["message"]["content"])
        tally.asked.append([*messages, _said("assistant", said)])
        return said

    return ask


async def _once(ask: Ask, prompt: Messages) -> None:
    await ask(prompt)


async def _conversation(ask: Ask, turns: list[str]) -> None:
    messages: Messages = []
    for turn in turns:
        messages.append(_said("user", turn))
        answer = await ask(messages)
        if answer is None:
            return
        messages.append(_said("assistant", answer))


async def _some_at_once(jobs: list[Awaitable[None]]) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(job: Awaitable[None]) -> None:
        async with turns:
            await job

    await asyncio.gather(*(one(job) for job in jobs))


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(WORDS, k=count))
