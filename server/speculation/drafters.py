"""The drafters by their names in --speculative."""

from numaserve.server.option_types import DrafterName
from numaserve.server.speculation.suffix import Corpus, SuffixDrafter


class SuffixDrafters:
    """The drafters of a server's sequences, which know what the others have said."""

    def __init__(self) -> None:
        self._corpus = Corpus()

    def begin_step(self) -> None:
        """Let the drafters do the work of a step."""
        self._corpus.begin_step()

    def make(self, salt: str) -> SuffixDrafter:
        """The drafter of a sequence with this `cache_salt`."""
        return SuffixDrafter(self._corpus, salt)


def drafters_of(name: DrafterName) -> SuffixDrafters:
    """What makes the drafter of each sequence."""
    match name:
        case "suffix":
            return SuffixDrafters()
