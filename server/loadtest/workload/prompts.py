"""The prompts of a given length, as token ids or as words."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from numaserve.server.loadtest.workload.requests import Prompt

Piece = TypeVar("Piece", int, str)
CountTokens = Callable[[str], Awaitable[int]]

# The first id of those that every vocabulary has as text: control tokens come first, or after some tens of thousands.
FIRST_ID = 300
DEFAULT_VOCAB_SIZE = 30_000
_CORRECTIONS = 8
_CHARACTERS_PER_TOKEN = 4  # of English text, approximately

# Each word, with the space before it, is one token in common vocabularies, so that the number of words can be corrected
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
    """The maker of prompts from pieces: token ids, or words."""

    async def fill(self, length: int, rng: np.random.Generator, prefix: Sequence[Piece] = ()) -> list[Piece]:
        """Return pieces of `length` tokens in total that begin with `prefix`."""

    def prompt(self, pieces: Sequence[Piece]) -> Prompt:
        """Return the prompt in the form in which it is sent."""


class TokenFiller:
    """The maker of prompts from token ids, drawn uniformly."""

    def __init__(self, vocab_size: int | None = None) -> None:
        self._end = vocab_size or DEFAULT_VOCAB_SIZE
        self._begin = min(FIRST_ID, self._end // 2)

    async def fill(self, length: int, rng: np.random.Generator, prefix: Sequence[int] = ()) -> list[int]:
        """Return exactly `length` ids that begin with `prefix`."""
        more = rng.integers(self._begin, self._end, size=max(0, length - len(prefix)))
        return [*prefix, *more.tolist()][:length]

    def prompt(self, pieces: Sequence[int]) -> Prompt:
        """Return the ids themselves."""
        return list(pieces)


class WordFiller:
    """The maker of prompts from common English words. Without a way to count tokens, a word counts as one token."""

    def __init__(self, count_tokens: CountTokens | None = None) -> None:
        self._count_tokens = count_tokens

    async def fill(self, length: int, rng: np.random.Generator, prefix: Sequence[str] = ()) -> list[str]:
        """Return words of `length` tokens, including special tokens that the server adds."""
        words = _draw(length - len(prefix), rng)
        if self._count_tokens is None:
            return [*prefix, *words]
        for _ in range(_CORRECTIONS):
            missing = length - await self._count_tokens(" ".join([*prefix, *words]))
            if missing == 0:
                break
            if missing > 0:
                words += _draw(missing, rng)
            else:  # at least one word; if that word is too long, another one
                words = words[: max(0, len(words) + missing)] or _draw(1, rng)
        return [*prefix, *words]

    def prompt(self, pieces: Sequence[str]) -> Prompt:
        """Return the words as one text."""
        return " ".join(pieces)


async def random_prompt(
    length: int,
    rng: np.random.Generator,
    *,
    token_ids: bool,
    vocab_size: int | None = None,
    count_tokens: CountTokens | None = None,
) -> Prompt:
    """Return a prompt of `length` tokens."""
    if token_ids:
        ids = TokenFiller(vocab_size)
        return ids.prompt(await ids.fill(length, rng))
    words = WordFiller(count_tokens)
    return words.prompt(await words.fill(length, rng))


async def estimate_tokens(text: str) -> int:
    """Return an estimate of the number of tokens of a text, for use without a tokenizer."""
    return -(-len(text) // _CHARACTERS_PER_TOKEN)


def _draw(count: int, rng: np.random.Generator) -> list[str]:
    return [WORDS[i] for i in rng.integers(0, len(WORDS), size=max(1, count))]
