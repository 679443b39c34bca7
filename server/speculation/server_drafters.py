"""The drafters by their names in --speculative."""

from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules

from numaserve.server.speculation import drafters
from numaserve.server.speculation.constraint import KnownConstraint
from numaserve.server.speculation.decode import Decode
from numaserve.server.speculation.drafter import Drafter, FrontEndDrafter
from numaserve.workers.interface.drafters import WORKER_DRAFTERS


def _front_end() -> dict[str, FrontEndDrafter]:
    names = [module.name for module in iter_modules(drafters.__path__)]
    found: dict[str, FrontEndDrafter] = {name: import_module(f"{drafters.__name__}.{name}").DRAFTER for name in names}
    return dict(sorted(found.items(), key=lambda each: each[1].place))


_FRONT_END = _front_end()
DRAFTERS: tuple[str, ...] = (*_FRONT_END, *dict.fromkeys(each.name for each in WORKER_DRAFTERS.values()))


class ServerDrafters:
    """Makes the front end's drafters of a server's sequences: those of `names` that a sequence allows."""

    def __init__(self, names: Sequence[str]) -> None:
        self._sources = {name: each.source() for name, each in _FRONT_END.items() if name in names}

    def begin_step(self) -> None:
        """Begin with the next step."""
        for source in self._sources.values():
            source.begin_step()

    def make(self, seq: Decode, constraint: KnownConstraint) -> list[Drafter]:
        """Return the drafters of a sequence."""
        allowed = seq.request.drafters
        sources = [each for name, each in self._sources.items() if allowed is None or name in allowed]
        return [made for each in sources if (made := each.make(seq, constraint)) is not None]
