"""A drafter that knows the answers, and is wrong where a test wants it to be."""

from collections.abc import Sequence
from functools import partial

from tests.support.traffic import Answer, Request


class PlayedDrafter:
    """Guesses what the answers to `requests` say, but for every `wrong`-th token of each."""

    def __init__(self, requests: Sequence[Request], answers: Sequence[Answer], wrong: int) -> None:
        self._texts = [request.prompt + answer.tokens for request, answer in zip(requests, answers, strict=True)]
        self._wrong = wrong

    def guess(self, tokens: list[int], most: int) -> list[int]:
        """Guesses of what follows `tokens`."""
        text = next((text for text in self._texts if text[: len(tokens)] == tokens), tokens)
        end = len(tokens)
        return [abs(token - (index % self._wrong == 0)) for index, token in enumerate(text[end : end + most], end)]


def played(requests: Sequence[Request], answers: Sequence[Answer], *, wrong: int) -> partial[PlayedDrafter]:
    """What makes such a drafter for each sequence."""
    return partial(PlayedDrafter, requests, answers, wrong)
