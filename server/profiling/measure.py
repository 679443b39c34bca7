"""Profile measurements: of traffic by other clients, or of a single stream of its own."""

import random
import time
from collections.abc import Sequence
from typing import Any

from numaserve.server.config.tasks import ROUTES
from numaserve.server.profiling.figures import PhaseFigures, RankFigures, best_of, between, phase_figures
from numaserve.server.profiling.remote import ModelInfo, Remote


def watch(remote: Remote, seconds: float) -> list[PhaseFigures]:
    """Return figures of the steps of the next `seconds`, by rank. Raises `OperatorError`."""
    before = remote.profile(ceilings=True)
    time.sleep(seconds)
    return _phases("traffic", before, remote.profile(), remote.profile(ceilings=True))


def one_stream(remote: Remote, prompt_tokens: int, output_tokens: int) -> list[PhaseFigures]:
    """Return figures of a prompt and then of its output, by phase and rank; of one text if the model writes none.
    Raises `OperatorError`."""
    info = remote.model()
    if info.task != "generate":
        return _one_text(remote, info, min(prompt_tokens, info.max_model_len))
    prompt = _random_tokens(info, prompt_tokens)
    start = remote.profile(ceilings=True)
    for _ in remote.complete(info.served_model_name, prompt, 1):
        pass
    prefilled = remote.profile()
    # Again, this time from the cache: the rest of the prompt is computed when the first piece of output is here.
    stream = remote.complete(info.served_model_name, prompt, output_tokens)
    next(stream, None)
    decoding = remote.profile()
    for _ in stream:
        pass
    decoded = remote.profile()
    end = remote.profile(ceilings=True)
    return _phases("prefill", start, prefilled, end) + _phases("decode", decoding, decoded, start, end)


def _one_text(remote: Remote, info: ModelInfo, tokens: int) -> list[PhaseFigures]:
    path, body = _request(remote, info, _random_tokens(info, tokens))
    start = remote.profile(ceilings=True)
    remote.answer(path, {"model": info.served_model_name} | body)
    done = remote.profile()
    return _phases("text", start, done, remote.profile(ceilings=True))


def _request(remote: Remote, info: ModelInfo, tokens: list[int]) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request for one text. Classifiers take no token ids; the text of random tokens
    may have other tokens, and as many as fit."""
    if info.task == "embed":
        return ROUTES["embed"], {"input": [tokens]}
    if info.task == "sparse":
        return ROUTES["sparse"], {"inputs": [tokens]}
    return ROUTES["classify"], {"inputs": remote.text_of(info.served_model_name, tokens), "truncate": True}


def _random_tokens(info: ModelInfo, count: int) -> list[int]:
    """Return random tokens, so that no part of them is found in the cache."""
    return random.choices(range(info.vocab_size), k=count)  # noqa: S311  nothing secret


def _phases(
    name: str, before: Sequence[RankFigures], after: Sequence[RankFigures], *measured: Sequence[RankFigures]
) -> list[PhaseFigures]:
    phases = []
    for index, grown in enumerate(between(before, after)):
        ceilings = grown.ceilings
        for snapshot in measured:
            ceilings = best_of(ceilings, snapshot[index].ceilings)
        phases.append(phase_figures(name, grown, ceilings))
    return phases
