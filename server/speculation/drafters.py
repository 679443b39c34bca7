"""The drafters by their names in --speculative."""

from numaserve.server.option_types import DrafterName
from numaserve.server.speculation.suffix import Corpus


def drafters_of(name: DrafterName) -> Corpus:
    """What makes the drafter of each sequence of a server."""
    match name:
        case "suffix":
            return Corpus()
