"""Log-probabilities of the texts of an output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec
from numaserve.server.surfaces.openai.logprobs import TokenNames, chat_entries
from numaserve.workers.interface.protocol import TokenLogprobs


class TextLogprobs:
    """The tokens that wait for the text that they are: what reads an answer holds back what may become a mark."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._waiting: list[TokenLogprobs] = []

    def add(self, tokens: Sequence[TokenLogprobs]) -> None:
        """The tokens of the next step."""
        self._waiting += tokens

    def take(self, text: str) -> list[msgspec.Raw]:
        """The entries of the tokens that `text` is made of. Those before it were marks, those behind it wait."""
        pieces = [self._names.bytes_of(each.token) for each in self._waiting]
        wanted = text.encode()
        start = b"".join(pieces).rfind(wanted)
        if start < 0:  # tokens that were cut, or that stand for other bytes in the text
            start, wanted = 0, b"".join(pieces)
        ends = list(accumulate(map(len, pieces)))
        first = sum(end <= start for end in ends)
        last = sum(end - len(piece) < start + len(wanted) for end, piece in zip(ends, pieces, strict=True))
        taken, self._waiting = self._waiting[first:last], self._waiting[last:]
        return chat_entries(self._names, taken)

    def drop(self) -> None:
        """Those that wait were no text."""
        self._waiting = []
