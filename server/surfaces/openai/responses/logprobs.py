"""Log-probabilities of the texts of an output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec
from numaserve.server.surfaces.openai.logprobs import TokenNames, chat_entries
from numaserve.workers.interface.protocol import TokenLogprobs


class TextLogprobs:
    """The tokens whose text is still pending: the parser of an answer holds back text that may become a mark."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._waiting: list[TokenLogprobs] = []

    def add(self, tokens: Sequence[TokenLogprobs]) -> None:
        """Add the tokens of the next step."""
        self._waiting += tokens

    def take(self, text: str) -> list[msgspec.Raw]:
        """Return the entries of the tokens that make up `text`. Earlier tokens were marks; later ones remain
        pending."""
        pieces = [self._names.bytes_of(each.token) for each in self._waiting]
        wanted = text.encode()
        start = b"".join(pieces).rfind(wanted)
        if start < 0:  # truncated tokens, or tokens whose bytes differ in the text
            start, wanted = 0, b"".join(pieces)
        ends = list(accumulate(map(len, pieces)))
        first = sum(end <= start for end in ends)
        last = sum(end - len(piece) < start + len(wanted) for end, piece in zip(ends, pieces, strict=True))
        taken, self._waiting = self._waiting[first:last], self._waiting[last:]
        return chat_entries(self._names, taken)

    def drop(self) -> None:
        """Drop the pending tokens, which were not text."""
        self._waiting = []
