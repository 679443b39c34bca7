"""The engine's work for adapters: their messages to the workers, and the ends of their requests."""

from collections.abc import Callable, Mapping, Sequence

from numaserve.server.adapters.adapters import Adapters
from numaserve.server.adapters.rank_loads import RankLoads
from numaserve.server.adapters.registry import RegistryHooks
from numaserve.server.common.death import Death
from numaserve.server.engine.types import AdapterGone, GenerationFailed
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.request import Request
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.supervisor.group import GroupFailed
from numaserve.workers.interface.protocol import LoadAdapter


class AdapterWork:
    """Connects `adapters` with scheduler, metrics and workers."""

    def __init__(
        self,
        adapters: Adapters,
        scheduler: Scheduler,
        metrics: Metrics,
        send: Callable[[LoadAdapter], None],
        world_size: int,
    ) -> None:
        self.adapters = adapters
        self._scheduler = scheduler
        self._metrics = metrics
        self._ranks = RankLoads(send, world_size)
        self.on_answer = self._ranks.on_answer  # of a rank
        self._has_workers = False
        hooks = RegistryHooks(scheduler.kv.withdraw, self._forgotten, self._is_planned, self._report)
        adapters.connect(self._ranks, hooks)
        self._report()

    def check(self, requests: Sequence[Request]) -> None:
        """Raise `AdapterGone` where the adapter of a request was unloaded since the request found it."""
        for request in requests:
            if request.adapter is not None and not self.adapters.admits(request.adapter):
                raise AdapterGone(request.adapter.name)

    def check_first(self, problems: Mapping[int, str]) -> None:
        """Raise `GroupFailed` for an adapter of the start that the first workers could not load. `problems` are by
        place."""
        names = {each.number: each.name for each in self.adapters.loaded.values()}
        for number, problem in problems.items():
            raise GroupFailed(Death("failure", f"the LoRA adapter {names.get(number, number)}: {problem}"))

    def drop(self, problems: Mapping[int, str], fail: Callable[[Adapter, GenerationFailed], None]) -> None:
        """Drop the adapters that new workers could not load, and end their requests by `fail`."""
        for number, problem in problems.items():
            adapter = self.adapters.drop(number, problem)
            if adapter is not None:
                message = (
                    f"The workers were restarted, and the new workers could not load the LoRA adapter '{adapter.name}':"
                    f" {problem}. The server has unloaded the adapter."
                )
                fail(adapter, GenerationFailed(message))

    def up(self) -> None:
        """Note that there are workers."""
        self._has_workers = True
        self._ranks.up()

    def down(self, why: str) -> None:
        """Note that there are no workers, for the reason `why`, and that plans in flight are lost."""
        self._has_workers = False
        self._ranks.down(why)
        self.adapters.settle()

    def info(self) -> dict[str, object]:
        """Return the loaded adapters for `/server_info`; nothing for a server without adapters."""
        if not self.adapters.num_places:
            return {}
        loaded = [
            {"name": each.name, "path": each.path, "rank": each.rank, "matrices": each.matrices, "digest": each.digest}
            for each in self.adapters.loaded.values()
        ]
        return {"loras": loaded}

    def _is_planned(self, adapter: Adapter) -> bool:
        return self._has_workers and self._scheduler.plans_with(adapter)

    def _forgotten(self, adapter: Adapter) -> None:
        self._scheduler.kv.forget_adapter(adapter)
        if adapter.name not in self.adapters.loaded:
            self._metrics.adapter_gone(adapter.name)

    def _report(self) -> None:
        if self.adapters.num_places:
            self._metrics.adapters(list(self.adapters.loaded), places=self.adapters.num_places)
