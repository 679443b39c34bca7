"""The process that computes masks. Started by `MatcherProcesses`."""

import ctypes
from base64 import b85encode
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec
from numaserve.server.confined.work import Complaint, Work, serve
from numaserve.server.scheduler.matcher import ConstraintFailed
from numaserve.server.structured.matchers.matcher import GrammarMatcher, mask_bytes
from numaserve.server.structured.parser_limits import new_matcher
from numaserve.server.structured.vocabulary import Vocabulary

UNKNOWN = ""  # the answer if the process lacks the matcher, or has it at another position
_MOST_MATCHERS = 32  # the least recently used one is evicted; it is rebuilt when needed


class Piece(msgspec.Struct, omit_defaults=True):
    """Work on one matcher: the tokens to accept before the next mask is computed."""

    id: int
    tokens: list[int]
    known: int = 0  # number of tokens that the matcher has accepted before
    grammar: str = ""  # in llguidance's form; empty for a known matcher


class Matchers:
    """The matchers of this process, by id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = vocabulary.load()
        self._held: OrderedDict[int, tuple[GrammarMatcher, int]] = OrderedDict()

    def mask(self, piece: Piece) -> str:
        """Return the mask of a matcher in base 85, or `UNKNOWN`. Raises `Complaint` if the answer cannot continue."""
        matcher, known = self._held.pop(piece.id, (None, 0))
        if piece.grammar:
            compiled = new_matcher(self._tokenizer, piece.grammar)
            matcher = GrammarMatcher(compiled, self._vocabulary.size, frozenset(self._vocabulary.eos))
        elif matcher is None or known != piece.known:
            return UNKNOWN
        bits = ctypes.create_string_buffer(mask_bytes(self._vocabulary.size))
        try:
            for token in piece.tokens:
                matcher.accept(token)
            matcher.write_mask(ctypes.addressof(bits), len(bits))
        except ConstraintFailed as error:
            raise Complaint(str(error)) from None
        self._held[piece.id] = matcher, piece.known + len(piece.tokens)
        if len(self._held) > _MOST_MATCHERS:
            self._held.popitem(last=False)
        return b85encode(bits.raw).decode()


def _work(config: Mapping[str, Any]) -> Work:
    matchers = Matchers(msgspec.convert(config["vocabulary"], Vocabulary))
    return lambda piece: matchers.mask(msgspec.convert(piece, Piece))


if __name__ == "__main__":
    serve(lambda: None, _work)
