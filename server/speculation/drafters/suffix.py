"""Draft tokens from earlier text: the tokens that followed the last occurrence of the same tokens."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from operator import itemgetter

from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.drafter import FrontEndDrafter
from numaserve.server.speculation.match_cursor import MatchCursor

_KEY = 3  # tokens that must match
_LONGEST = 32  # matching tokens above which more make no difference
_TRIED = 4  # latest places of a key
_A_STEP = 4096  # tokens indexed in a step, of all sequences: the event loop waits meanwhile
_GENERATION = 1 << 16  # keys
_TEXTS = 4  # tokens of all texts, for each key of a generation
_A_TEXT = 32  # size of an empty text, in tokens
_TYPE = "i"  # of a token in a text
_TYPE_BITS = 8 * array(_TYPE).itemsize
_NOWHERE = -1
_INDEX_BITS = 32  # of a place: a text's number, and the index in it

_Key = tuple[str, int, int, int]  # the scope's digest and the tokens before a place


class Text:
    """A copy of a sequence's indexed tokens, and for each place the previous place with the same key.

    The copy takes 12 bytes per token. The sequence's own list would take 48, and would contain newer tokens that are
    not counted.
    """

    __slots__ = ("earlier", "last_noted", "number", "tokens")

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens = array(_TYPE)
        self.earlier = array("q")  # the first one belongs to the place after the first whole key
        self.last_noted = 0  # generation

    @property
    def size(self) -> int:
        """The memory of the text, in tokens."""
        return len(self.tokens) + _A_TEXT


class Corpus:
    """The places of recent tokens in prompts and answers, of running and of ended requests.

    Texts of different scopes are separate, as in the prefix cache: the scope is part of each key. The number of keys is
    bounded: the older of two generations is forgotten at once, because forgetting text by text would take as long as
    indexing. Keys do not bound the texts, since equal texts have the same keys. The texts that were not noted for the
    longest time go when all together have too many tokens. The last text stays, however long it is. A place is a
    number: a list of places for each key was rejected, because the garbage collector would visit each list.
    """

    def __init__(self, generation: int = _GENERATION) -> None:
        """Start empty. `generation` is the number of keys of each of the two generations. A key takes about 230 bytes.
        Texts have at most four times as many tokens, of 12 bytes each."""
        self._keys = generation
        self._limit = _TEXTS * generation
        self._young: dict[_Key, int] = {}
        self._old: dict[_Key, int] = {}
        self._texts: OrderedDict[int, Text] = OrderedDict()  # by number, in order of the last note
        self._held = 0  # the size of all texts
        self._generation = self._numbers = 0
        self._left = 0

    def begin_step(self) -> None:
        """Allow the indexing of a step's number of tokens."""
        self._left = _A_STEP

    def held(self, text: Text | None) -> Text:
        """Return `text`, and keep it again if it was dropped for others. An empty text replaces it if its keys are
        forgotten."""
        if text is not None and text.number in self._texts:
            return text
        if text is None or text.last_noted < self._generation - 1:
            self._numbers += 1
            text = Text(self._numbers)
        self._texts[text.number] = text
        self._held += text.size
        return text

    def take_in(self, scope: str, text: Text, tokens: list[int]) -> bool:
        """Index the tokens that the kept `text` lacks of `tokens`, which are at least three, as far as the step allows.
        Return whether the text is complete."""
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
        while self._held > self._limit and len(self._texts) > 1:
            self._forget_text()
        if len(self._young) >= self._keys:
            self._forget_old()
        return end == len(tokens)

    def find(self, scope: str, tokens: list[int]) -> Iterator[tuple[Text, int]]:
        """Yield the texts that contain the last tokens of `tokens`, and the index after them; the latest first."""
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
    """Finds where the end of a sequence has occurred before, and drafts the tokens that followed there.

    The drafter takes the place with the longest match among the latest places of the last tokens, as in prompt lookup
    (Saxena, 2023) and SuffixDecoding (Oliaro et al., 2024). If there is no such place, the drafter continues the last
    text that it followed, if the sequence is found again close by (see `MatchCursor`). Draft tokens from the sequence
    itself continue with themselves at its end, so a repetition can be drafted to any length.
    """

    name = "suffix"

    def __init__(self, corpus: Corpus, scope: str) -> None:
        """Draft from texts of the scope with the digest `scope` alone. Every key has the digest."""
        self._corpus = corpus
        self._scope = scope
        self._text: Text | None = None
        self._cursor: MatchCursor | None = None

    @property
    def matched(self) -> int:
        """The number of tokens before the place that match."""
        return 0 if self._cursor is None else self._cursor.matched

    def draft(self, tokens: list[int], limit: int) -> list[int]:
        """Return at most `limit` draft tokens after `tokens`, which is the same growing list in each call."""
        if len(tokens) < _KEY:
            return []
        self._text = self._corpus.held(self._text)
        if not self._corpus.take_in(self._scope, self._text, tokens):
            return []
        self._look_for(self._text, tokens)
        cursor = self._cursor
        return [] if cursor is None or not cursor.is_there else _continued(tokens, cursor.text, cursor.place, limit)

    def _look_for(self, own: Text, tokens: list[int]) -> None:
        """Find a text that continues like this one, or continue along the last one."""
        found = [
            (_common(own.tokens, text.tokens, place), text, place)
            for text, place in self._corpus.find(self._scope, tokens)
        ]
        if found:
            matched, text, place = max(found, key=itemgetter(0))  # the latest of equal matches
            self._cursor = MatchCursor(tokens if text is own else text.tokens, place, len(tokens), matched)
        elif self._cursor is not None:
            self._cursor.follow(tokens)
            if self._cursor.is_lost:
                self._cursor = None  # with it the text, which may be another sequence's


def _common(tokens: array[int], text: array[int], place: int) -> int:
    """Return the number of tokens before `place` of a text that match the end of `tokens`."""
    longest = min(place, len(tokens), _LONGEST)
    ours, theirs = tokens[-longest:].tobytes(), text[place - longest : place].tobytes()
    differ = int.from_bytes(ours, "little") ^ int.from_bytes(theirs, "little")  # a loop would take longer
    return longest - 1 - (differ.bit_length() - 1) // _TYPE_BITS


def _continued(tokens: list[int], text: Sequence[int], place: int, limit: int) -> list[int]:
    """Return the tokens that follow in the text; after the end of the sequence itself, its own draft tokens."""
    drafts = list(text[place : place + limit])
    if text is tokens:
        while len(drafts) < limit:
            drafts.append(drafts[place - len(tokens)])
    return drafts


class _Source:
    """The corpus of all sequences."""

    def __init__(self) -> None:
        self._corpus = Corpus()

    def begin_step(self) -> None:
        self._corpus.begin_step()

    def make(self, seq: Decode, _constraint: KnownConstraint) -> SuffixDrafter:
        return SuffixDrafter(self._corpus, seq.request.scope.digest)


DRAFTER = FrontEndDrafter(place=1, source=_Source)
