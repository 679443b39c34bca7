"""The engine: admits requests, lets the step loop run them on the worker group, and survives the group's death."""

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict

from numaserve.server.adapters.adapters import Adapters
from numaserve.server.common.death import Cause, Death
from numaserve.server.engine.adapter_work import AdapterWork
from numaserve.server.engine.admission.admission import Admission
from numaserve.server.engine.admission.places import Place, Places
from numaserve.server.engine.clock import Clock
from numaserve.server.engine.config import EngineCallbacks, EngineConfig
from numaserve.server.engine.disk_work import DiskIndex, DiskWork
from numaserve.server.engine.masks.masks import MatcherWork
from numaserve.server.engine.overview import Overview, prefixes_of
from numaserve.server.engine.recovery.recovery import Recovery
from numaserve.server.engine.requests.registry import LiveRequests
from numaserve.server.engine.requests.stream import Stream
from numaserve.server.engine.steps.deadlines import StepDeadlines
from numaserve.server.engine.steps.loop import StepHooks, StepLoop
from numaserve.server.engine.types import Busy, GenerationFailed, Load, NotReady
from numaserve.server.engine.views.gauges import Gauges
from numaserve.server.engine.views.info import disk_info, limits_info, load_of, settings_info
from numaserve.server.engine.views.profiles import Profiles
from numaserve.server.engine.views.ranks import Ranks
from numaserve.server.engine.views.traces import TraceSink
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.request import Request
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence as ScheduledSequence
from numaserve.server.scheduler.sequence import SequenceUpdate
from numaserve.server.supervisor.group import GroupHooks
from numaserve.server.supervisor.supervisor import Supervisor, SupervisorHooks
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.interface.protocol import FromDisk, RankProfile

logger = logging.getLogger(__name__)

_STOP_GRACE_S = 5.0
_MEASURING_S = 5.0  # longer than measuring the ceilings takes, including the steps in between


class Engine:
    """Implements `EngineProtocol` over the workers of `supervisor`.

    May be constructed outside of an event loop; `start` and all later calls belong to one event loop. `Masks` describes
    `matcher_work`.
    """

    def __init__(
        self,
        config: EngineConfig,
        supervisor: Supervisor,
        scheduler: Scheduler,
        tokenizer: TokenizerProtocol,
        metrics: Metrics,
        *,
        callbacks: EngineCallbacks | None = None,
        clock: Clock = time.monotonic,
        matcher_work: MatcherWork | None = None,
        trace: TraceSink | None = None,
        adapters: Adapters | None = None,
        disk_index: DiskIndex | None = None,
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._launches = launches = supervisor.launches
        self._scheduler = scheduler
        self._metrics = metrics
        self._clock = clock
        self._adapters = AdapterWork(adapters or Adapters(), scheduler, metrics, supervisor.send, len(launches))
        self._requests = LiveRequests(
            scheduler,
            tokenizer,
            metrics,
            board=lambda: supervisor.board,
            on_end=self._on_room,
            on_mask=self._on_mask,
            mask_patience_s=config.mask_patience_s,
            clock=clock,
            matcher_work=matcher_work,
            trace=trace,
            looks_ahead="grammar" in config.drafters,
            adapters=self._adapters.adapters,
        )
        self._callbacks = callbacks or EngineCallbacks()
        self._ranks = Ranks(launches, metrics, clock, config.hosts)
        self._steps = StepLoop(
            scheduler,
            StepHooks(
                planning=self._requests.planning,
                send=supervisor.send,
                admitted=self._requests.scheduled,
                updated=self._on_updated,
                drafted=self._requests.masks.drafted,
                masked=self._requests.masks.planned,
                void=self._requests.masks.void,
                look=supervisor.look,
                starved=self._ranks.starved,
                failed=self._on_step_failed,
                broken=supervisor.fail,
                planned=self._on_planned,
            ),
            metrics,
            world_size=len(launches),
            leader=next(each.number for each in launches if each.answers),
            depth=scheduler.config.max_in_flight if config.overlap else 1,
            deadlines=StepDeadlines(config.step_deadline_s),
            beat_s=config.beat_s,
            clock=clock,
        )
        self._disk: DiskWork | None = None
        if scheduler.disk is not None and disk_index is not None:
            self._disk = DiskWork(
                scheduler.disk,
                disk_index,
                send=supervisor.send,
                wake=self._steps.wake,
                world_size=len(launches),
                clock=clock,
            )
        self._profiles = Profiles(
            supervisor.send, world_size=len(launches), deadline_s=config.step_deadline_s + _MEASURING_S
        )
        self._admission = Admission(
            scheduler,
            self._requests.backlog,
            max_queued_requests=config.max_queued_requests,
            max_queued_s=config.max_queued_s,
        )
        self._places = Places(self._requests.backlog, config.max_queued_s)
        gauges = Gauges(metrics, scheduler, config.drafters, None if self._disk is None else self._disk.figures)
        gauges.describe_cache(launches[0].settings.kv_cache_dtype)
        metrics.before_scrape(gauges.set)
        self._recovery = Recovery(scheduler, self._requests, metrics, clock, timeout_s=config.resume_timeout_s)
        self._state = "loading"
        self._draining = False

    # --- calls from the HTTP layer ------------------------------------------------------------------------------

    def admit(self, requests: Sequence[Request]) -> Stream:
        """Admit the sequences of one client, all or none. Raises `QueueFull`, `NotReady` or `RequestTooLong`."""
        if not self.takes_requests():
            raise NotReady(f"The server is {self.state}. Retry later.")
        if not self._supervisor.can_mask and any(request.matcher for request in requests):
            raise NotReady(
                "This server cannot constrain responses: its workers receive no token masks. Send the request "
                "without a constraint."
            )
        self._adapters.check(requests)
        now = self._clock()
        self._admission.check(requests, self._requests.without_place, now)
        stream = self._requests.add(requests, now)
        self._steps.wake()
        return stream

    def place(self, client: Client) -> Place:
        """Return a place for a request with more prompts than the queue takes at once. Raises `QueueFull` or
        `NotReady`."""
        if not self.takes_requests():
            raise NotReady(f"The server is {self.state}. Retry later.")
        return self._places.enter(client, self._admit_placed, self._clock())

    def is_ready(self) -> bool:
        """Return whether requests are served now."""
        return self.state == "serving"

    def takes_requests(self) -> bool:
        """Return whether requests are admitted now: while the server serves or the workers are being replaced."""
        return self.state == "serving" or (self.state == "restarting" and not self._recovery.is_overdue)

    def is_alive(self) -> bool:
        """Return False only when the engine has permanently given up."""
        return self._state != "failed"

    async def flush_cache(self) -> bool:
        """Drop the cached prefixes, also on disk. Return False, with nothing dropped, when a request was running."""
        done = self._scheduler.flush_cache()
        if done and self._disk is not None:
            self._disk.keep_changes()
        return done

    def load(self) -> Load:
        """Return the current load."""
        return load_of(self._scheduler)

    def disk_failed(self, problem: str, message: str) -> None:
        """Go on without the disk tier, whose index has a problem of this kind."""
        if self._disk is not None:
            self._disk.switch_off(f"{problem}: {message}")

    def keep_cache_groups(self, groups: Collection[str]) -> None:
        """Erase the cached prefixes on disk of all other cache groups, whose keys were removed."""
        if self._disk is not None:
            self._disk.keep_groups(groups)

    def server_info(self) -> dict[str, object]:
        """Return the configuration, topology and live counters."""
        return {
            "model": self._config.model,
            "version": self._config.version,
            "state": self.state,
            "tp": len(self._launches),
            "max_queued_requests": self._config.max_queued_requests,
            "overlap": self._config.overlap,
            "speculative": list(self._config.drafters) or "off",
            "draft_model": None if self._launches[0].draft is None else self._launches[0].draft.model,
            **limits_info(self._scheduler.config),
            "step_tokens": self._scheduler.step_size.tokens,
            "backend": self._launches[0].backend,
            **settings_info(self._launches[0].settings, self._config.multiplied_by),
            **self._adapters.info(),
            **({} if self._disk is None else {"kv_disk": disk_info(str(self._disk.folder), self._disk.figures())}),
            "workers": self._ranks.info(self._supervisor.pids),
            "restarts": self._supervisor.restarts,
            "dropped_frames": self._supervisor.garbage_frames,
            "steps": self._steps.steps,
            **asdict(self._scheduler.stats()),
        }

    def overview(self) -> Overview:
        """Return the current state of the queue, the pages, the prefix tree and the workers."""
        prompt_tokens, generation_tokens = self._metrics.tokens()
        return Overview(
            state=self.state,
            max_running=self._scheduler.config.max_running,
            max_waiting=self._config.max_queued_requests,
            longest_wait_s=self._requests.longest_wait_s,
            page_size=self._scheduler.config.page_size,
            prompt_tokens=prompt_tokens,
            generation_tokens=generation_tokens,
            restarts=self._supervisor.restarts,
            steps=self._steps.steps,
            prefixes=prefixes_of(self._scheduler.kv.tree),
            workers=self._ranks.states(),
            disk=None if self._disk is None else self._disk.figures(),
            **asdict(self._scheduler.stats()),
        )

    async def profile(self, *, ceilings: bool = False) -> list[RankProfile]:
        """Return figures of each rank's steps since the rank was loaded, by rank. Raises `NotReady`.

        With `ceilings` each rank also measures the limits of its node. The rank measures them with its own threads:
        another process would measure other cores, or another machine. The measurement takes some tenths of a second, in
        slices between steps. Raises `Busy` while a request runs, since steps would distort the result.
        """
        if self._state != "serving":
            raise NotReady(f"The server is {self.state}. Retry later.")
        if ceilings and len(self._requests) > 0:
            raise Busy(
                "Requests are running. The server measures the ceilings (the limits of the cores and the memory) only "
                "when the server is idle. Retry when no request is running."
            )
        return await self._profiles.ask(ceilings=ceilings)

    def _admit_placed(self, requests: Sequence[Request]) -> Stream:
        if self._state not in ("serving", "restarting"):  # a request with a place is not new to a draining server
            raise NotReady(f"The server is {self.state}. Retry later.")
        self._adapters.check(requests)
        stream = self._requests.add(requests, self._clock(), placed=True)
        self._steps.wake()
        return stream

    # --- calls from the command line ----------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """One of loading, serving, restarting, draining, stopped and failed."""
        return "draining" if self._draining and self._state in ("serving", "restarting") else self._state

    async def start(self) -> None:
        """Start the workers and wait until they serve.

        Raises `GroupFailed` when the workers cannot be started, and `OperatorError` when there is no place for their
        sockets. In both cases no process is left running.
        """
        try:
            await self._supervisor.start(self._hooks())
            self._adapters.check_first(self._ranks.adapter_problems)
        except BaseException:
            self._state = "failed"
            raise

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests, let the live ones finish for `seconds`, then stop. Return whether all finished."""
        self._draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._places.wait_until_empty()
                await self._requests.wait_until_empty()
        except TimeoutError:
            logger.warning("%d requests did not finish within %g s", len(self._requests), seconds)
        finished = len(self._requests) == 0
        await self.stop()
        return finished

    async def stop(self, *, at_once: bool = False) -> None:
        """End the live requests with an error and end the workers.

        Idle workers get time to complete background work such as caching weights, unless `at_once` is set. A worker
        that is in a step gets no such time: it would read the end message only after the step, whose result is no
        longer needed.
        """
        grace_s = 0.0 if at_once or not self._steps.idle else _STOP_GRACE_S
        if self._state != "failed":
            self._state = "stopped"
        self._steps.halt()
        self._profiles.fail("The server is shutting down.")
        self._adapters.down("The server is shutting down.")
        if self._disk is not None:
            self._disk.down()
        self._recovery.close()
        self._requests.fail_all(GenerationFailed("The server is shutting down."))
        self._requests.masks.close()
        self._requests.timeouts.close()
        await self._supervisor.stop(grace_s)
        self._ranks.down()

    def seconds_without_progress(self) -> float:
        """Return the seconds since workers with pending work last answered; 0 while they are idle. For a watchdog."""
        return self._steps.seconds_without_progress()

    # --- callbacks from the supervisor --------------------------------------------------------------------------

    def _hooks(self) -> SupervisorHooks:
        """Return the supervisor's hooks; steps, profiles and progress go directly to their receivers."""
        group = GroupHooks(
            answered=self._steps.on_answer,
            profiled=self._profiles.on_answer,
            described=self._ranks.describe,
            loaded=self._callbacks.load_progress,
            starved=self._ranks.starved,
            adapter_loaded=self._adapters.on_answer,
            disk=self._on_disk,
        )
        return SupervisorHooks(
            group,
            up=self._on_up,
            down=self._on_down,
            restarted=self._recovery.restarting,
            given_up=self._on_given_up,
        )

    def _on_up(self) -> None:
        self._ranks.up(self._config)
        ranks = self._ranks
        self._scheduler.step_costs.describe(ranks.terms, ranks.draft_terms, ranks.tower_terms, ranks.tower_parts)
        if self._state != "loading":  # before a step is planned
            self._adapters.drop(self._ranks.adapter_problems, self._requests.fail_with)
        self._state = "serving"
        self._adapters.up()
        if self._disk is not None:
            self._disk.up()
        self._requests.masks.begin()
        self._recovery.workers_up()
        self._steps.start()

    def _on_down(self, death: Death) -> Cause:
        self._state = "restarting"
        self._steps.halt()
        self._requests.masks.reset()
        self._profiles.fail(f"The workers failed ({death}). Retry later.")
        self._adapters.down(f"The workers failed ({death}). Retry later.")
        if self._disk is not None:
            self._disk.down()
        self._ranks.down()
        return self._recovery.died(death, steps=self._steps.steps, beats=self._steps.beats)

    def _on_given_up(self, reason: str) -> None:
        self._state = "failed"
        self._recovery.close()
        self._adapters.down(f"The server stopped serving: {reason}. Restart the server.")
        self._requests.fail_all(NotReady(f"The server stopped serving: {reason}. Restart the server."))
        self._callbacks.given_up(reason)

    # --- callbacks from the step loop ---------------------------------------------------------------------------

    def _on_updated(self, updates: list[SequenceUpdate], now: float) -> None:
        self._recovery.answered()
        self._requests.advance(updates, now)
        self._adapters.adapters.settle()

    def _on_step_failed(self, sequences: list[ScheduledSequence], message: str) -> None:
        self._recovery.answered()  # workers that fail a step still serve the other requests
        self._requests.fail(sequences, GenerationFailed(f"The workers could not compute the request: {message}"))
        self._adapters.adapters.settle()

    def _on_planned(self) -> None:
        if self._disk is not None:
            self._disk.pump()

    def _on_disk(self, message: FromDisk) -> None:
        if self._disk is not None:
            self._disk.on_answer(message)

    def _on_mask(self) -> None:
        self._steps.wake()

    def _on_room(self) -> None:
        if self._state == "serving":
            self._recovery.settle()
        self._steps.wake()
