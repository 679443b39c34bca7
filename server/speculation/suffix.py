"""Guesses from what was said before: what followed, the last time that the same tokens came."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from operator import itemgetter

from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.speculation.match_cursor import MatchCursor

_KEY = 3  # tokens that must be the same
_LONGEST = 32  # beyond which one match is as good as another
_TRIED = 4  # places of a key, from the latest on
_A_STEP = 4096  # tokens taken in for a step, of all sequences: the event loop waits meanwhile
_GENERATION = 1 << 16  # keys
_TEXTS = 4  # tokens of texts that are held, by keys of a generation
_A_TEXT = 32  # tokens whose memory an empty text takes
_SCOPE_BYTES = 16
_TYPE = "i"  # of a token in a text
_TYPE_BITS = 8 * array(_TYPE).itemsize
_NOWHERE = -1
_INDEX_BITS = 32  # of a place: a text's number, and the index in it

_Key = tuple[str, int, int, int]  # the scope's digest and the tokens before a place


class Text:
    """A copy of a sequence's tokens, as far as they are noted, and for each place the one before it of the same key.

    The copy takes 12 bytes a token. The sequence's own list would take 48, with its numbers, and have tokens that are
    not counted: those that came since.
    """

    __slots__ = ("earlier", "last_noted", "number", "tokens")

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens = array(_TYPE)
        self.earlier = array("q")  # the first one is of the place behind the first whole key
        self.last_noted = 0  # in which generation

    @property
    def size(self) -> int:
        """The memory that it takes, in tokens."""
        return len(self.tokens) + _A_TEXT


class Corpus:
    """Where tokens have come lately, in prompts and answers, of requests that run and of those that have ended.

    Texts of different scopes know nothing of each other, as in the prefix cache: the scope is a part of each key.
    The keys are bounded by forgetting those of the older of two generations at once; to forget text by text would take
    as long as to take it in. Keys do not bound the texts, since equal texts have the same ones: the texts that were
    noted least lately go when all together have too many tokens. The last one stays, however long it is. A place is a
    number, and no key has a list of them, since the garbage collector would look at each.
    """

    def __init__(self, generation: int = _GENERATION) -> None:
        """`generation`: how many keys each of the two has; one takes about 230 bytes. Texts have at most four times as
        many tokens, of 12 bytes each."""
        self._most = generation
        self._most_held = _TEXTS * generation
        self._young: dict[_Key, int] = {}
        self._old: dict[_Key, int] = {}
        self._texts: OrderedDict[int, Text] = OrderedDict()  # by number, the least lately noted first
        self._held = 0  # the size of all texts
        self._generation = self._numbers = 0
        self._left = 0

    def begin_step(self) -> None:
        """Let so many tokens be taken in as a step has time for."""
        self._left = _A_STEP

    def held(self, text: Text | None) -> Text:
        """Return `text`, which is put back if it went for the sake of others. An empty text takes its place if its keys
        are forgotten, as nothing was noted of it for long."""
        if text is not None and text.number in self._texts:
            return text
        if text is None or text.last_noted < self._generation - 1:
            self._numbers += 1
            text = Text(self._numbers)
        self._texts[text.number] = text
        self._held += text.size
        return text

    def take_in(self, scope: str, text: Text, tokens: list[int]) -> bool:
        """Note what the held `text` lacks of `tokens`, of which there are at least three, as far as the step's time
        allows; returns whether that is all."""
        known, young, old, number = len(text.tokens), self._young, self._old, text.number << _INDEX_BITS
        begin = max(known, _KEY)
        end = min(len(tokens), begin + self._left)
        for place in range(begin, end):
            key = scope, tokens[place - 3], tokens[place - 2], tokens[place - 1]
            text.earlier.append(young.get(key, old.get(key, _NOWHERE)))
            young[key] = number | place
        text.tokens.fromlist(tokens[known:end])
        self._left -= end - begin
        self._held += end - known
        self._texts.move_to_end(text.number)
        text.last_noted = self._generation
        while self._held > self._most_held and len(self._texts) > 1:
            self._forget_text()
        if len(self._young) >= self._most:
            self._forget_old()
        return end == len(tokens)

    def find(self, scope: str, tokens: list[int]) -> Iterator[tuple[Text, int]]:
        """Texts in which the last tokens of `tokens` have come, and the index behind them there; the latest first."""
        key = (scope, tokens[-3], tokens[-2], tokens[-1])
        place = self._young.get(key, self._old.get(key, _NOWHERE))
        for _ in range(_TRIED):
            text = self._texts.get(place >> _INDEX_BITS)
            if text is None:  # no text has the number of _NOWHERE
                return
            index = place & (1 << _INDEX_BITS) - 1
            yield text, index
            place = text.earlier[index - _KEY]

    def _forget_old(self) -> None:
        self._old, self._young = self._young, {}
        while self._texts and next(iter(self._texts.values())).last_noted < self._generation:
            self._forget_text()
        self._generation += 1

    def _forget_text(self) -> None:
        _, text = self._texts.popitem(last=False)
        self._held -= text.size


class SuffixDrafter:
    """Looks up where the end of a sequence has occurred before, and continues as the text went on there.

    Of the latest places that have its last tokens in common, the one that agrees with it for longest is taken, as in
    prompt lookup (Saxena, 2023) and SuffixDecoding (Oliaro et al., 2024). Where there is none, the drafter
    continues the text that it followed last, if the sequence is found again close by (see `MatchCursor`). Draft tokens
    from the sequence itself continue with themselves at its end, so that a repetition is drafted to any wanted length.
    """

    name = "suffix"

    def __init__(self, corpus: Corpus, scope: CacheScope) -> None:
        self._corpus = corpus
        # Every key has the scope, which may take a KiB and be another in each request. No one finds two scopes of the
        # same digest.
        self._scope = blake2b(scope.encode(), digest_size=_SCOPE_BYTES).hexdigest() if scope else ""
        self._text: Text | None = None
        self._trail: MatchCursor | None = None

    @property
    def matched(self) -> int:
        """How many of the last tokens the text has, too, that was followed last."""
        return 0 if self._trail is None else self._trail.matched

    def guess(self, tokens: list[int], most: int) -> list[int]:
        """At most so many guesses of what follows `tokens`: one list, to which tokens are added from call to call."""
        if len(tokens) < _KEY:
            return []
        self._text = self._corpus.held(self._text)
        if not self._corpus.take_in(self._scope, self._text, tokens):
            return []
        self._look_for(self._text, tokens)
        trail = self._trail
        return [] if trail is None or not trail.is_there else _continued(tokens, trail.text, trail.place, most)

    def _look_for(self, own: Text, tokens: list[int]) -> None:
        """Find a text that goes on as this one, or go on along the last one."""
        found = [
            (_common(own.tokens, text.tokens, place), text, place)
            for text, place in self._corpus.find(self._scope, tokens)
        ]
        if found:
            matched, text, place = max(found, key=itemgetter(0))  # of equal ones the first, which is the latest
            self._trail = MatchCursor(tokens if text is own else text.tokens, place, len(tokens), matched)
        elif self._trail is not None:
            self._trail.follow(tokens)
            if self._trail.is_lost:
                self._trail = None  # with it the text, which may be another sequence's


def _common(tokens: array[int], text: array[int], place: int) -> int:
    """How many tokens before `place` of a text are those at the end of `tokens`."""
    longest = min(place, len(tokens), _LONGEST)
    ours, theirs = tokens[-longest:].tobytes(), text[place - longest : place].tobytes()
    differ = int.from_bytes(ours, "little") ^ int.from_bytes(theirs, "little")  # a loop would take longer
    return longest - 1 - (differ.bit_length() - 1) // _TYPE_BITS


def _continued(tokens: list[int], text: Sequence[int], place: int, most: int) -> list[int]:
    """What follows in the text; where that is the sequence itself, beyond its end what was guessed so far."""
    guesses = list(text[place : place + most])
    if text is tokens:
        while len(guesses) < most:
            guesses.append(guesses[place - len(tokens)])
    return guesses
