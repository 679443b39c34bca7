"""Guesses from what was said before: what followed, the last time that the same tokens came."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from operator import itemgetter

from numaserve.server.scheduler.cache_scope import CacheScope
from numaserve.server.speculation.trail import Trail

_KEY = 3  # tokens that must be the same
_LONGEST = 32  # beyond which one match is as good as another
_TRIED = 4  # places of a key, from the latest on
_A_STEP = 4096  # tokens taken in for a step, of all sequences: the event loop waits meanwhile
_GENERATION = 1 << 16  # keys
_NOWHERE = -1
_INDEX_BITS = 32  # of a place: a text's number, and the index in it

_Key = tuple[CacheScope, int, int, int]  # the scope and the tokens before a place


class _Text:
    """A sequence's tokens, to which more are added, and for each place noted the one before it of the same key."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self.earlier = array("q")
        self.last_noted = 0  # in which generation

    @property
    def known(self) -> int:
        """How far its places are noted; the first one is behind the first whole key."""
        return _KEY + len(self.earlier)


class Corpus:
    """Where tokens have come lately, in prompts and answers, of requests that run and of those that have ended.

    Texts of different scopes know nothing of each other, as in the prefix cache: the scope is a part of each key.
    The memory is bounded by forgetting all keys of the older of two generations at once; to forget text by text would
    take as long as to take it in. A place is a number, and no key has a list of them, since the garbage collector would
    look at each.
    """

    def __init__(self, generation: int = _GENERATION) -> None:
        """`generation`: how many keys each of the two has; one takes about 200 bytes."""
        self._most = generation
        self._young: dict[_Key, int] = {}
        self._old: dict[_Key, int] = {}
        self._texts: dict[int, _Text] = {}
        self._generation = self._numbers = 0
        self._left = 0

    def begin_step(self) -> None:
        """Let so many tokens be taken in as a step has time for."""
        self._left = _A_STEP

    def enter(self, tokens: Sequence[int]) -> int:
        """Begin a text, whose tokens are noted as they come; returns its number."""
        self._numbers += 1
        self._texts[self._numbers] = _Text(tokens)
        return self._numbers

    def holds(self, number: int) -> bool:
        """Whether the text is known still; one of which nothing was noted for long is not."""
        return number in self._texts

    def take_in(self, scope: CacheScope, number: int) -> bool:
        """Note what the text has got, as far as the step's time allows; returns whether that is all."""
        text = self._texts[number]
        tokens, begin = text.tokens, text.known
        end = min(len(tokens), begin + self._left)
        for place in range(begin, end):
            key = _key(scope, tokens, place)
            text.earlier.append(self._young.get(key, self._old.get(key, _NOWHERE)))
            self._young[key] = number << _INDEX_BITS | place
        self._left -= max(0, end - begin)
        text.last_noted = self._generation
        if len(self._young) >= self._most:
            self._forget_old()
        return end == len(tokens)

    def find(self, scope: CacheScope, tokens: Sequence[int]) -> Iterator[tuple[Sequence[int], int]]:
        """Texts in which the last tokens of `tokens` have come, and the index behind them there; the latest first."""
        key = _key(scope, tokens, len(tokens))
        place = self._young.get(key, self._old.get(key, _NOWHERE))
        for _ in range(_TRIED):
            text = self._texts.get(place >> _INDEX_BITS)
            if place == _NOWHERE or text is None:
                return
            index = place & (1 << _INDEX_BITS) - 1
            yield text.tokens, index
            place = text.earlier[index - _KEY]

    def _forget_old(self) -> None:
        self._old, self._young = self._young, {}
        self._texts = {number: text for number, text in self._texts.items() if text.last_noted == self._generation}
        self._generation += 1


class SuffixDrafter:
    """Looks up where the end of a sequence has occurred before, and continues as the text went on there.

    Of the latest places that have its last tokens in common, the one that agrees with it for longest is taken, as in
    prompt lookup (Saxena, 2023) and SuffixDecoding (Oliaro et al., 2024). Where there is none, the text is gone on with
    that was followed last, if it is found again close by (see `Trail`). In the sequence itself guesses go on in
    themselves where they reach the end, so that what repeats is guessed as far as is wanted.
    """

    name = "suffix"

    def __init__(self, corpus: Corpus, scope: CacheScope) -> None:
        self._corpus = corpus
        self._scope = scope
        self._number = 0
        self._trail: Trail | None = None

    @property
    def matched(self) -> int:
        """How many of the last tokens the text has, too, that was followed last."""
        return 0 if self._trail is None else self._trail.matched

    def guess(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most so many guesses of what follows `tokens`: one list, to which tokens are added from call to call."""
        if len(tokens) < _KEY:
            return []
        if not self._corpus.holds(self._number):
            self._number = self._corpus.enter(tokens)
        if not self._corpus.take_in(self._scope, self._number):
            return []
        self._look_for(tokens)
        trail = self._trail
        return [] if trail is None or not trail.is_there else _continued(tokens, trail.text, trail.place, most)

    def _look_for(self, tokens: Sequence[int]) -> None:
        """Find a text that goes on as this one, or go on along the last one."""
        found = [(_common(tokens, *place), place) for place in self._corpus.find(self._scope, tokens)]
        if found:
            matched, (text, place) = max(found, key=itemgetter(0))  # of equal ones the first, which is the latest
            self._trail = Trail(text, place, len(tokens), matched)
        elif self._trail is not None:
            self._trail.follow(tokens)
            if self._trail.is_lost:
                self._trail = None  # with it the text, which may be another sequence's


def _key(scope: CacheScope, tokens: Sequence[int], end: int) -> _Key:
    return scope, tokens[end - 3], tokens[end - 2], tokens[end - 1]


def _common(tokens: Sequence[int], text: Sequence[int], place: int) -> int:
    """How many tokens before `place` of a text are those at the end of `tokens`."""
    longest = min(place, len(tokens), _LONGEST)
    for length in range(_KEY, longest):
        if text[place - 1 - length] != tokens[-1 - length]:
            return length
    return longest


def _continued(tokens: Sequence[int], text: Sequence[int], place: int, most: int) -> list[int]:
    """What follows in the text; where that is the sequence itself, beyond its end what was guessed so far."""
    guesses = list(text[place : place + most])
    if text is tokens:
        while len(guesses) < most:
            guesses.append(guesses[place - len(tokens)])
    return guesses
