"""Prompts of a wanted length, as token ids or as words."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from numaserve.server.loadtest.workload.requests import Prompt

Piece = TypeVar("Piece", int, str)
CountTokens = Callable[[str], Awaitable[int]]

# Ids that every vocabulary in use has, and none uses for control: those come first, or after some tens of thousands.
FIRST_ID = 300
DEFAULT_VOCAB_SIZE = 30_000
_CORRECTIONS = 8
_CHARACTERS_PER_TOKEN = 4  # in English text, roughly

# With the blank before it each is one token in the vocabularies in use, so that the number of words can be corrected
# to give an exact number of tokens.
_COMMON = """
a about after all also and any are as at back be because been between book both but by call can car city could day did
do down each even every few find first for from game get give go good great group had hand has have head help her here
high him his home house how if in into is it its just keep know land last life light like line little long look made
make man many may me more most much must my name need new next no not now number of off old on one only or other our
out over own part people place point power right said same say school second see set she should show side small so
some state still such system take than that the their them then there these they thing think this three time to two
under up use very was water way we well were what when where which while who why will with work world would year you
your
"""
WORDS = tuple(_COMMON.split())


class Filler(Protocol, Generic[Piece]):
    """Makes prompts out of pieces: token ids, or words."""

    async def fill(self, length: int, rng: np.random.Generator, prefix: Sequence[Piece] = ()) -> list[Piece]:
        """Pieces of `length` tokens together, which begin with `prefix`."""

    def prompt(self, pieces: Sequence[Piece]) -> Prompt:
        """The prompt as it is sent."""


class TokenFiller:
    """Token ids, drawn evenly."""

    def __init__(self, vocab_size: int | None = None) -> None:
        self._end = vocab_size or DEFAULT_VOCAB_SIZE
        self._begin = min(FIRST_ID, self._end // 2)

    async def fill(self, length: int, rng: np.random.Generator, prefix: Sequence[int] = ()) -> list[int]:
        """Exactly `length` ids, which begin with `prefix`."""
        more = rng.integers(self._begin, self._end, size=max(0, length - len(prefix)))
        return [*prefix, *more.tolist()][:length]

    def prompt(self, pieces: Sequence[int]) -> Prompt:
        """The ids themselves."""
        return list(pieces)


class WordFiller:
    """Common English words: exact where tokens can be counted, otherwise a word is taken for a token."""

    def __init__(self, count_tokens: CountTokens | None = None) -> None:
        self._count_tokens = count_tokens

    async def fill(self, length: int, rng: np.random.Generator, prefix: Sequence[str] = ()) -> list[str]:
        """Words of `length` tokens, special tokens that the server adds among them."""
        words = _draw(length - len(prefix), rng)
        if self._count_tokens is None:
            return [*prefix, *words]
        for _ in range(_CORRECTIONS):
            missing = length - await self._count_tokens(" ".join([*prefix, *words]))
            if missing == 0:
                break
            if missing > 0:
                words += _draw(missing, rng)
            else:  # at least one word, and if that is too long, another one
                words = words[: max(0, len(words) + missing)] or _draw(1, rng)
        return [*prefix, *words]

    def prompt(self, pieces: Sequence[str]) -> Prompt:
        """The words as one text."""
        return " ".join(pieces)


async def random_prompt(
    length: int,
    rng: np.random.Generator,
    *,
    token_ids: bool,
    vocab_size: int | None = None,
    count_tokens: CountTokens | None = None,
) -> Prompt:
    """A prompt of `length` tokens."""
    if token_ids:
        ids = TokenFiller(vocab_size)
        return ids.prompt(await ids.fill(length, rng))
    words = WordFiller(count_tokens)
    return words.prompt(await words.fill(length, rng))


async def estimate_tokens(text: str) -> int:
    """An estimate of the tokens of a text, where no tokenizer can be asked."""
    return -(-len(text) // _CHARACTERS_PER_TOKEN)


def _draw(count: int, rng: np.random.Generator) -> list[str]:
    return [WORDS[i] for i in rng.integers(0, len(WORDS), size=max(1, count))]
