"""The drafters by their names in --speculative."""

from collections.abc import Callable, Sequence

from numaserve.server.config.option_types import DrafterName
from numaserve.server.scheduler.guesses import Drafter
from numaserve.server.scheduler.sequence import Sequence as Scheduled
from numaserve.server.speculation.grammar import GrammarDrafter
from numaserve.server.speculation.prediction import PredictionDrafter
from numaserve.server.speculation.suffix import Corpus, SuffixDrafter


class ServerDrafters:
    """Makes the drafters of a server's sequences: those of `names` that a sequence lets guess."""

    def __init__(self, names: Sequence[DrafterName]) -> None:
        self._corpus = Corpus()
        makers: dict[DrafterName, Callable[[Scheduled], Drafter | None]] = {
            "prediction": _prediction,
            "suffix": lambda seq: SuffixDrafter(self._corpus, seq.scope),
            "grammar": lambda seq: GrammarDrafter(seq) if seq.sampling.masked else None,
        }
        self._makers = {name: make for name, make in makers.items() if name in names}

    def begin_step(self) -> None:
        """Begin with the next step."""
        self._corpus.begin_step()

    def make(self, seq: Scheduled) -> list[Drafter]:
        """Those of a sequence."""
        made = [make(seq) for name, make in self._makers.items() if seq.drafters is None or name in seq.drafters]
        return [each for each in made if each is not None]


def _prediction(seq: Scheduled) -> PredictionDrafter | None:
    return PredictionDrafter(seq.prediction, seq.prompt_len) if seq.prediction else None
