"""The drafters by their names in --speculative."""

from collections.abc import Callable

from numaserve.server.option_types import DrafterName
from numaserve.server.speculation.suffix import SuffixDrafter

MAKERS: dict[DrafterName, Callable[[], SuffixDrafter]] = {"suffix": SuffixDrafter}
