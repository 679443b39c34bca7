"""What holds at any time, and what holds when everything is over."""

import gc
import math
import weakref

from numaserve.server.scheduler.errors import SchedulerIntegrityError
from numaserve.server.scheduler.request import Request
from numaserve.server.supervisor.agent_messages import LOST_S

from tests.simulation.anchor_order import AnchorOrder
from tests.simulation.kv_events import KVEvents
from tests.simulation.scenario import Scenario
from tests.simulation.server import Server
from tests.simulation.world import World
from tests.support.scheduler_integrity import check_integrity

# What may follow each state of the engine.
_STATES = {
    "loading": {"serving", "failed", "stopped"},
    "serving": {"restarting", "draining", "stopped"},
    "restarting": {"serving", "failed", "draining", "stopped"},
    "draining": {"failed", "stopped"},
    "failed": set[str](),
    "stopped": set[str](),
}


_LOOKS_S = 1.0  # besides the time of a silence, which is looked at now and then, and again after each absence
_HARMLESS = {"slow", "fail", "unasked", "twice"}  # faults of steps that do not end the workers


class Invariants:
    """Looks at the engine in every turn of the loop in which something has happened."""

    def __init__(self, world: World, server: Server) -> None:
        self._world = world
        self._engine = server.engine
        self._adapters = server.adapters
        self._scheduler = server.scheduler
        self._metrics = server.metrics
        self._groups = server.groups
        self._launches = server.launches
        self._hosts = server.hosts
        anchors = server.scheduler.kv.anchors
        self._anchors = None if anchors is None else AnchorOrder(world, anchors)
        self._events = KVEvents(world, server.scheduler)
        self._state = server.engine.state
        self._requests: dict[str, weakref.ref[Request]] = {}  # of all sequences that were seen
        config = server.engine._config
        # After the last answer, or the last sign of life of those that freeze just after it.
        self._patience_s = (config.beat_s or 0.0) + 2 * config.step_deadline_s
        self._silence_s = LOST_S + _LOOKS_S * (1 + len(server.hosts.scenario.absences))

    def check(self) -> None:
        """Check what holds at any time."""
        world, scheduler, state = self._world, self._scheduler, self._engine.state
        if state != self._state:
            world.note(f"state.{state}")
            if state not in _STATES[self._state]:
                world.violate(f"the engine went from {self._state} to {state}")
            self._state = state
        try:
            check_integrity(scheduler)
        except SchedulerIntegrityError as error:
            world.violate(f"the scheduler's books: {error}")
        if self._anchors is not None:
            self._anchors.check()
        self._events.check()
        live, sequences = self._engine._requests._live.keys(), scheduler.live.by_id.keys()
        self._requests |= {
            each: weakref.ref(scheduler.live.by_id[each].request) for each in sequences - self._requests.keys()
        }
        if live != sequences:
            world.violate(f"requests {sorted(live)} live, and the scheduler has sequences {sorted(sequences)}")
        if state == "serving" and not live:
            world.workers_work()
        if not self._engine._requests.masks._held.keys() <= live:
            world.violate("the masks of a request that has ended are kept")
        alive = [group for group in self._groups if group.state != "ended"]
        if len(alive) > 1:
            world.violate("a group was made before the one before it had ended")
        if state == "serving" and (not alive or alive[0].state not in ("serving", "dead")):
            world.violate(f"the engine serves, and its workers are {[group.state for group in alive]}")
        if state == "serving" and alive and alive[0].frozen_for() > self._patience_s:
            world.violate("workers that do nothing more went unnoticed")
        if state == "serving" and alive and max(alive[0].lost_for(), self._hosts.silent_for()) > self._silence_s:
            world.violate("a host that is gone went unnoticed")
        self._check_adapters()
        steps = self._engine._steps
        if steps._running and len(scheduler.in_flight) != len(steps._in_flight):
            world.violate("scheduler and step loop do not agree on the plans in flight")

    def _check_adapters(self) -> None:
        registry = self._adapters._registry
        if any(registry._places[each.number].adapter is not each for each in registry.served.values()):
            self._world.violate("requests find an adapter that is not in its place")
        waiting = [each for each in registry._places.values() if each.state in ("loading", "draining")]
        if len(registry._loading) > len(waiting):
            self._world.violate(f"the loads of {registry._loading} have the places {waiting}")

    def check_quiet(self) -> None:
        """Check what holds when every client has been served and the workers are still there."""
        stats, world = self._scheduler.stats(), self._world
        if stats.running or stats.waiting or len(self._engine._requests):
            world.violate(f"nobody asks for anything any more, and there are requests: {stats}")
        backlog = self._engine._requests.backlog
        if backlog.tokens or backlog.seconds:
            world.violate(f"nobody waits, and {backlog.tokens} tokens do")
        places = self._adapters._registry._places.values()
        in_use = any(each.requests or each.state not in ("free", "loaded") for each in places)
        if in_use and self._engine.state == "serving":
            world.violate(f"nobody asks for anything any more, and places of adapters are in use: {places}")
        disk = self._scheduler.disk
        if stats.pages_active and not (disk is not None and disk.held_nodes):  # a disk may take its time
            world.violate(f"{stats.pages_active} pages are lost")
        snapshots = self._scheduler.snapshot_stats()
        if snapshots is not None and snapshots.active:
            world.violate(f"{snapshots.active} snapshots are lost")
        windows = self._scheduler.kv.window_stats()
        if windows is not None and windows.active:
            world.violate(f"{windows.active} window pages are lost")
        if self._engine.state == "serving":  # without workers, the scheduler has the lists of its last plan
            self._check_no_request_is_kept()

    def _check_no_request_is_kept(self) -> None:
        tiles = self._world.images.contents
        if tiles or any(request() for request in self._requests.values()):
            gc.collect()  # of what the simulated clients leave; tests/service/test_no_garbage.py is about the server
        if kept := [name for name, request in self._requests.items() if request()]:
            world = self._world
            world.violate(f"nobody asks for anything any more, and the requests of sequences {kept} are kept")
        if tiles:
            self._world.violate(f"nobody asks for anything any more, and the pixels of {len(tiles)} tiles are kept")

    def check_search(self, scenario: Scenario) -> None:
        """Check that one request that kills, and nothing else that does, was found with few deaths."""
        poison = sum(wanted.poison for request in scenario.requests for wanted in request.sequences)
        lonely = scenario.hosts and scenario.absences  # the agents give up a front end that is absent
        others = (
            lonely
            or scenario.host_absences
            or scenario.deaths
            or scenario.load_faults
            or not _HARMLESS.issuperset(scenario.step_faults)
        )
        if poison == 1 and not others and self._world.deaths:
            suspects = max(len(seeds) for seeds in self._world.deaths)
            if len(self._world.deaths) > math.ceil(math.log2(suspects)) + 2:
                self._world.violate(f"{len(self._world.deaths)} deaths to find one of {suspects} requests")

    def check_over(self) -> None:
        """Check what holds when the engine has stopped."""
        world, metrics = self._world, self._metrics
        if any(group.state != "ended" for group in self._groups):
            world.violate("a group was left behind")
        if self._engine.state not in ("stopped", "failed"):
            world.violate(f"the engine is {self._engine.state} and not stopped")
        restarts = metrics.calls["workers_restarted"]
        if restarts != max(0, len(self._launches) - 1):
            world.violate(f"{restarts} restarts were counted, and there were {len(self._launches)} launches")
        if metrics.ended != world.admitted:
            world.violate(f"{world.admitted} sequences were admitted, and {metrics.ended} ends were counted")
        if metrics.scheduled > world.admitted:
            world.violate("a sequence left the queue for the first time twice")
        if metrics.tokens != metrics.tokens_of_ended:
            world.violate(f"{metrics.tokens} tokens were counted, and {metrics.tokens_of_ended} at the ends")
