"""The drafters of the front end, by their names in --speculative."""

from collections.abc import Callable, Sequence

from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.drafter import Drafter
from numaserve.server.speculation.drafters.grammar import GrammarDrafter
from numaserve.server.speculation.drafters.prediction import PredictionDrafter
from numaserve.server.speculation.drafters.suffix import Corpus, SuffixDrafter


class ServerDrafters:
    """Makes the drafters of a server's sequences: those of `names` that a sequence allows."""

    def __init__(self, names: Sequence[str]) -> None:
        self._corpus = Corpus()
        makers: dict[str, Callable[[Decode, KnownConstraint], Drafter | None]] = {
            "prediction": _prediction,
            "suffix": lambda seq, _: SuffixDrafter(self._corpus, seq.scope),
            "grammar": lambda seq, constraint: GrammarDrafter(constraint) if seq.sampling.masked else None,
        }
        self._makers = {name: make for name, make in makers.items() if name in names}

    def begin_step(self) -> None:
        """Begin with the next step."""
        self._corpus.begin_step()

    def make(self, seq: Decode, constraint: KnownConstraint) -> list[Drafter]:
        """Return the drafters of a sequence."""
        makers = [make for name, make in self._makers.items() if seq.drafters is None or name in seq.drafters]
        made = [make(seq, constraint) for make in makers]
        return [each for each in made if each is not None]


def _prediction(seq: Decode, _: KnownConstraint) -> PredictionDrafter | None:
    return PredictionDrafter(seq.prediction, seq.position.prompt_len) if seq.prediction else None
