"""A drafter that knows the answers, and is wrong as often as a test wants."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from tests.support.drafters import Each


class Asked(Protocol):
    """A request."""

    @property
    def prompt(self) -> list[int]: ...


class Said(Protocol):
    """An answer."""

    @property
    def tokens(self) -> list[int]: ...


class PlayedDrafter:
    """Drafts what the answers to `requests` say, but for one of `wrong` tokens."""

    def __init__(self, requests: Sequence[Asked], answers: Sequence[Said], wrong: int, _salt: str) -> None:
        self._texts = [request.prompt + answer.tokens for request, answer in zip(requests, answers, strict=True)]
        self._wrong = wrong

    def draft(self, tokens: list[int], most: int) -> list[int]:
        """Return draft tokens of what follows `tokens`."""
        text = next((text for text in self._texts if text[: len(tokens)] == tokens), tokens)
        end = len(tokens)
        true = enumerate(text[end : end + most], end)
        return [abs(token - (hash((index, token)) % self._wrong == 0)) for index, token in true]


def played(requests: Sequence[Asked], answers: Sequence[Said], *, wrong: int) -> Each:
    """What makes such a drafter for each sequence."""
    return Each(partial(PlayedDrafter, requests, answers, wrong))
