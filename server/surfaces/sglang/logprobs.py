"""Log-probabilities in SGLang's format: ``[log-probability, token id, text or null]``."""

from collections.abc import Iterable, Sequence

from numaserve.server.surfaces.openai.logprobs import TokenNames, finite
from numaserve.workers.interface.protocol import TokenLogprobs

Entry = list[object]


class Entries:
    """Writes entries, with the texts of tokens if they are requested."""

    def __init__(self, names: TokenNames | None) -> None:
        self._names = names

    def entry(self, token: int, logprob: float | None) -> Entry:
        """Return the entry of one token."""
        text = None if self._names is None else self._names.text_of(token)
        return [None if logprob is None else finite(logprob), token, text]

    def chosen(self, tokens: Iterable[TokenLogprobs]) -> list[Entry]:
        """Return the log-probabilities of the generated tokens."""
        return [self.entry(each.token, each.logprob) for each in tokens]

    def likeliest(self, tokens: Iterable[TokenLogprobs]) -> list[list[Entry]]:
        """Return the log-probabilities of the most likely tokens, at each position."""
        return [list(map(self.entry, each.top_ids, each.top_logprobs)) for each in tokens]

    def named(self, ids: Sequence[int], logprobs: Iterable[Sequence[float]]) -> list[list[Entry]]:
        """Return the log-probabilities of the requested tokens, at each position."""
        return [list(map(self.entry, ids, each)) for each in logprobs]
