"""One life of the server: checks, loading, serving, draining.

Everything that can be wrong is found before a weight is read, cheapest first: address, keys, processor, model, memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from numaserve.server.api.auth import ApiKeys
from numaserve.server.cli.api_key_file import find_api_key_file
from numaserve.server.cli.descriptors import check_descriptors
from numaserve.server.cli.instruction_set import instruction_set
from numaserve.server.cli.listen import bind_listener, url_of
from numaserve.server.cli.loading import LoadingDisplay
from numaserve.server.cli.logs import set_up_logging
from numaserve.server.cli.model_argument import served_name
from numaserve.server.cli.planning import plan_options
from numaserve.server.cli.systemd import ServiceManager, watchdog_seconds
from numaserve.server.cli.version import installed_version
from numaserve.server.config import ServeConfig
from numaserve.server.engine.engine import Engine, EngineCallbacks, EngineConfig
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.server.supervisor.group import GroupFailed
from numaserve.server.supervisor.process import DEFAULT_COMMAND
from numaserve.server.tokenizer import load_tokenizer
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.shm_comm import create_segment
from numaserve.workers.models.config import load_model_config
from numaserve.workers.plan import GroupPlan, make_plan
from numaserve.workers.topology import read_topology
from numaserve.workers.weights.hub import resolve_model

if TYPE_CHECKING:
    from numaserve.server.cli.http import HttpServer

EXIT_OK = 0
EXIT_FAILED = 1

_log = logging.getLogger(__name__)


def run_service(config: ServeConfig, worker_command: Sequence[str] = DEFAULT_COMMAND) -> int:
    """Serve until told to stop; the process's exit status. Raises `OperatorError` for what the operator can mend.

    `worker_command` is what is executed for a worker, without its arguments.
    """
    set_up_logging(config.log_level)
    check_descriptors(config.max_running_requests)
    with bind_listener(config.host, config.port) as listener:
        api_keys = None if config.api_key_file is None else ApiKeys.from_file(find_api_key_file(config.api_key_file))
        instruction_set()
        path = resolve_model(config.model)
        model = load_model_config(path)
        plan = make_plan(plan_options(config, path), model, read_topology())
        for note in plan.notes:
            _log.warning("%s", note)
        if plan.front_end_cpus:
            os.sched_setaffinity(0, plan.front_end_cpus)
        service = Service(
            config=config,
            plan=plan,
            path=path,
            tokenizer=load_tokenizer(path),
            vocab_size=model.vocab_size,
            listener=listener,
            api_keys=api_keys,
            worker_command=worker_command,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(service.run())


class Service:
    """The engine and the HTTP server from start to end, and the signals between them.

    The first SIGTERM or SIGINT drains: new requests get 503, running ones may finish. A second one ends those too.
    """

    def __init__(
        self,
        *,
        config: ServeConfig,
        plan: GroupPlan,
        path: Path,
        tokenizer: TokenizerProtocol,
        vocab_size: int,
        listener: socket.socket,
        api_keys: ApiKeys | None,
        worker_command: Sequence[str],
    ) -> None:
        self._config = config
        self._plan = plan
        self._path = path
        self._name = config.served_model_name or served_name(config.model, path)
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._listener = listener
        self._api_keys = api_keys
        self._metrics = Metrics()
        self._service_manager = ServiceManager()
        self._display = LoadingDisplay(self._name, self._service_manager)
        self._engine = self._make_engine(worker_command)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._gave_up = asyncio.Event()

    async def run(self) -> int:
        """Load, serve, drain; the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        with self._display:
            starting = loop.create_task(self._engine.start())
            # Importing the HTTP side in a thread lets the event loop feed the workers meanwhile.
            http = await asyncio.to_thread(self._make_http_server)
            serving = loop.create_task(http.run_until_stopped())
            await _first_of(starting, self._stop.wait())
        try:
            if starting.done():
                starting.result()
                await self._serve_until_stopped()
            else:
                starting.cancel()
                await asyncio.wait([starting])
        except GroupFailed as error:
            _log.critical("the workers could not be started: %s", error)
            return EXIT_FAILED
        finally:
            await self._wind_down()
            http.stop()
            await serving
            self._service_manager.close()
        return EXIT_FAILED if self._gave_up.is_set() else EXIT_OK

    async def _serve_until_stopped(self) -> None:
        self._announce()
        watchdog = asyncio.get_running_loop().create_task(self._service_manager.feed_watchdog(self._makes_progress))
        try:
            await _first_of(self._stop.wait(), self._gave_up.wait())
        finally:
            watchdog.cancel()

    async def _wind_down(self) -> None:
        """Drain unless there is a reason to hurry; the engine is stopped afterwards in any case."""
        self._service_manager.stopping()
        if self._engine.is_ready():
            _log.info("draining: running requests may finish for %g s", self._config.drain_seconds)
            await _first_of(self._engine.drain(self._config.drain_seconds), self._hurry.wait())
        await self._engine.stop()

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _makes_progress(self) -> bool:
        return self._engine.is_alive() and self._engine.seconds_without_progress() < (watchdog_seconds() or 0)

    def _announce(self) -> None:
        url = url_of(self._listener)
        self._service_manager.ready(f"serving {self._name} at {url}")
        messages = [{"role": "user", "content": "Name the capital of France."}]
        body = {"model": self._name, "messages": messages, "temperature": 0}
        words = ["curl", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
        if self._api_keys is not None:
            words[2:2] = ["-H", "Authorization: Bearer YOUR-KEY"]
        sys.stdout.write(f"{self._name} is served at {url} - try: {shlex.join(words)}\n")
        sys.stdout.flush()

    def _make_engine(self, worker_command: Sequence[str]) -> Engine:
        config, plan = self._config, self._plan
        scheduler = Scheduler(
            SchedulerConfig(
                num_pages=plan.num_pages,
                context_length=plan.context_length,
                max_running_requests=config.max_running_requests,
                max_step_tokens=plan.max_step_tokens,
                max_logit_rows=plan.max_logit_rows,
                enable_prefix_cache=config.prefix_cache,
            )
        )
        world_size = len(plan.launches)
        ring_factory = partial(create_segment, world_size, plan.ring_lanes, plan.ring_slot_bytes)
        return Engine(
            EngineConfig(
                model=self._name,
                version=installed_version(),
                max_queued_requests=config.max_queued_requests,
                step_deadline_s=config.step_deadline_seconds,
                overlap=config.overlap,
            ),
            plan.launches,
            scheduler,
            self._tokenizer,
            self._metrics,
            ring_factory=ring_factory if world_size > 1 else None,
            callbacks=EngineCallbacks(load_progress=self._display.update, given_up=lambda _reason: self._gave_up.set()),
            worker_command=worker_command,
        )

    def _make_http_server(self) -> HttpServer:
        from numaserve.server.api.context import ApiContext, ApiLimits  # noqa: PLC0415 the workers are loading by now
        from numaserve.server.cli.http import HttpServer  # noqa: PLC0415

        context = ApiContext(
            engine=self._engine,
            tokenizer=self._tokenizer,
            metrics=self._metrics,
            model_name=self._name,
            model_path=str(self._path),
            version=installed_version(),
            limits=ApiLimits(
                context_length=self._plan.context_length,
                vocab_size=self._vocab_size,
                max_sequences=self._config.max_running_requests + self._config.max_queued_requests,
            ),
            api_keys=self._api_keys,
            log_prompts=self._config.log_prompts,
        )
        return HttpServer(context, self._listener)


async def _first_of(*waits: Awaitable[object]) -> None:
    """Return when the first is done, having cancelled those that were made here; a failed one raises later."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, wait in zip(tasks, waits, strict=True):
        if task is not wait and not task.done():
            task.cancel()
            await asyncio.wait([task])
