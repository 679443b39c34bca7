"""A drafter that knows the answers, and is wrong as often as a test wants."""

from collections.abc import Sequence
from typing import Protocol

from tests.support.drafters import Each, Knowing


class Asked(Protocol):
    """A request."""

    @property
    def prompt(self) -> list[int]: ...


class Said(Protocol):
    """An answer."""

    @property
    def tokens(self) -> list[int]: ...


def played(requests: Sequence[Asked], answers: Sequence[Said], *, wrong: int) -> Each:
    """Return drafters of what the answers to `requests` say, but for one of `wrong` tokens."""
    texts = [request.prompt + answer.tokens for request, answer in zip(requests, answers, strict=True)]

    def made(position: int, token: int) -> int:
        return abs(token - (hash((position, token)) % wrong == 0))

    return Each(lambda _salt: Knowing(lambda: texts, made))
