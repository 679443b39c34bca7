"""The search for the best request that a server understands, by sending a few."""

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
from numaserve.server.loadtest.client import Client, Dialect
from numaserve.server.loadtest.options import Traffic
from numaserve.server.loadtest.target import Target
from numaserve.server.loadtest.workload.prompts import random_prompt
from numaserve.server.loadtest.workload.requests import BenchRequest
from numaserve.workers.interface.errors import OperatorError

# Statuses with which servers refuse an unknown field or endpoint. 500: some servers fail on a prompt of token ids.
_NOT_UNDERSTOOD = frozenset({400, 404, 405, 415, 422, 500, 501})
_PROBE_INPUT, _PROBE_OUTPUT = 8, 2


@dataclass(frozen=True)
class Probed:
    """The dialect that a server understands, and notes on its consequences for the figures."""

    dialect: Dialect
    notes: list[str]


async def probe(target: Target, model: str, traffic: Traffic, *, token_ids: bool) -> Probed:
    """Return the dialect with the fewest concessions that the server answers.

    Raises `OperatorError` with the server's first refusal if the server answers none.
    """
    best = Dialect(token_ids=token_ids, ignore_eos=traffic.ignore_eos)
    refusal = ""
    for dialect in _concessions(best):
        outcome = await Client(target, model, dialect, traffic).complete(await _request(dialect, traffic))
        if outcome.error is None:
            return Probed(dialect, _notes(best, dialect, refusal, with_usage=outcome.with_usage))
        refusal = refusal or outcome.error
        if outcome.status not in _NOT_UNDERSTOOD:
            break
    hint = ". Name a file with an API key with --api-key-file" if outcome.status in (401, 403) else ""
    raise OperatorError(f"{target.base_url} did not complete a test request: {refusal}{hint}")


def _concessions(best: Dialect) -> list[Dialect]:
    """Return `best` and every lesser dialect, the least concession first."""
    names = [name for name in ("usage", "ignore_eos", "token_ids") if getattr(best, name)]
    dialects = [
        dataclasses.replace(best, chat=chat, **dict.fromkeys(given_up, False))
        for chat in (False, True)
        for count in range(len(names) + 1)
        for given_up in itertools.combinations(names, count)
    ]
    return [dialect for dialect in dialects if not (dialect.chat and dialect.token_ids)]


async def _request(dialect: Dialect, traffic: Traffic) -> BenchRequest:
    rng = np.random.default_rng(traffic.seed)
    prompt = await random_prompt(_PROBE_INPUT, rng, token_ids=dialect.token_ids, vocab_size=traffic.vocab_size)
    return BenchRequest(prompt, _PROBE_INPUT, _PROBE_OUTPUT)


def _notes(best: Dialect, dialect: Dialect, refusal: str, *, with_usage: bool) -> list[str]:
    notes = []
    if dialect.chat:
        notes.append(
            "the server has no /completions: measuring chat completions, whose chat template lengthens each prompt"
        )
    if best.token_ids and not dialect.token_ids:
        notes.append("the server does not accept token ids as prompts: sending text")
    if best.ignore_eos and not dialect.ignore_eos:
        notes.append("the server does not support ignore_eos: outputs may be shorter than requested")
    if not with_usage:
        notes.append(
            "the server reports no usage: counting each chunk with text as one output token, and input "
            "tokens as requested"
        )
    return [f"{note} ({refusal})" if refusal else note for note in notes]
