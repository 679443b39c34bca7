"""The run of a server: checks, loading, serving, draining.

All checks run before any weight is read, cheapest first: address, keys and processor (see `start`), model, memory,
tables of tensors.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import uvloop
from numaserve.server.answers.formats import reasoning_format, response_template, tool_format
from numaserve.server.connection.listen import Listener
from numaserve.server.engine.config import EngineCallbacks
from numaserve.server.engine.views.traces import TraceSink
from numaserve.server.generation.purpose import Generates
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.service.announce import announce, example_for
from numaserve.server.service.assembly import Checked, make_engine, make_http_server
from numaserve.server.service.bind import GatewayLink
from numaserve.server.service.checks.blocking import blocking_for_ranks
from numaserve.server.service.checks.draft_vocabulary import check_vocabulary
from numaserve.server.service.checks.instruction_set import name_of
from numaserve.server.service.checks.pair_types import check_pair_types
from numaserve.server.service.checks.tokenizer_check import check_tokenizer
from numaserve.server.service.hosts import find_hosts
from numaserve.server.service.images import check_special_tokens, create_image_store
from numaserve.server.service.kv_disk import open_store
from numaserve.server.service.kv_feed import open_kv_feed
from numaserve.server.service.loading import LoadingDisplay
from numaserve.server.service.model.adapters import find_adapters
from numaserve.server.service.model.by_model import with_model_defaults
from numaserve.server.service.model.chat_template_file import load_tokenizer_with
from numaserve.server.service.model.deployment import deployment_options
from numaserve.server.service.model.model_argument import served_names
from numaserve.server.service.model.purpose import find_purpose
from numaserve.server.service.model.sampling_defaults import read_sampling_defaults
from numaserve.server.service.process.ending import end_process
from numaserve.server.service.process.logs import is_text
from numaserve.server.service.process.stop_signals import StopSignals
from numaserve.server.service.process.systemd import ServiceManager, watchdog_seconds
from numaserve.server.service.spans import open_spans
from numaserve.server.service.start_report import log_start
from numaserve.server.service.started import Started
from numaserve.server.supervisor.group import GroupFailed
from numaserve.workers.models.load import open_model, read_config
from numaserve.workers.planning.deployment import make_deployment
from numaserve.workers.planning.topology import read_topology
from numaserve.workers.weights.checkpoint import check_checkpoint

if TYPE_CHECKING:
    from numaserve.server.kv_events.feed import KVFeed
    from numaserve.server.service.http import HttpServer

EXIT_OK = 0
EXIT_FAILED = 1

_log = logging.getLogger(__name__)


def serve(started: Started, closing: contextlib.ExitStack) -> NoReturn:
    """Serve until a stop signal, close `closing`, and end the process. Raises `OperatorError`."""
    config = started.config
    checked = _check(started)
    if checked.kv_disk is not None:
        closing.callback(checked.kv_disk.close)
    log_start(checked)
    kv_feed = open_kv_feed(config, checked.name)
    if kv_feed is not None:
        closing.callback(kv_feed.close)
    spans = open_spans(config, checked.name)
    if spans is not None:
        closing.callback(spans.close)
    trace = None if spans is None else spans.sequence_ended
    service = Service(checked, started.listeners, started.worker_command, kv_feed, trace, link=started.link)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(service.run())
        closing.close()
        end_process(status)


def _check(started: Started) -> Checked:
    path, tokenizer_check = started.path, started.tokenizer_check
    files = open_model(path, started.config.settings.mmproj)
    config = with_model_defaults(started.config, files)
    isa = name_of(started.kernels)
    hosts = find_hosts(config, path, isa)
    if hosts:
        # A core can be reserved on this host alone.
        own = config.reserve_core and hosts[0] is None
        config = config.model_copy(update={"pp": len(hosts), "reserve_core": own})
    wanted = deployment_options(config, path, isa)
    options = replace(wanted, blocking=blocking_for_ranks(config.blocking, isa))
    model = read_config(files, options.settings)
    if config.pp > 1:
        model = model.text_only()
    with_defaults = config.generation_config == "model"
    sampling_defaults = read_sampling_defaults(config.model, path) if with_defaults else Sampling()
    machine = read_topology()
    deployment = make_deployment(
        options, model, machine, [machine if each is None else each.topology for each in hosts]
    )
    check_checkpoint(files, model)
    adapters = find_adapters(config, served_names(config, path), model, deployment.launches[0].settings)
    if options.draft is not None:
        check_checkpoint(open_model(Path(options.draft.model)), options.draft.config)
    if config.draft_model is not None and options.draft is None:
        _log.warning(
            "not loading the draft model %s, because --speculative does not include draft_model", config.draft_model
        )
    for note in deployment.notes:
        _log.warning("%s", note)
    if deployment.front_end_cpus:
        os.sched_setaffinity(0, deployment.front_end_cpus)  # before starting a child, which inherits the affinity
    importlib.import_module("fastapi")  # needed later; imported while the tokenizer check runs
    tokenizer_check.wait_until_loaded(model.vocab_size)
    tokenizer = load_tokenizer_with(path, config.chat_template)
    purpose = find_purpose(config.served_task, path, model, tokenizer)
    generates = isinstance(purpose, Generates)
    if generates:
        tokenizer.check_decoder()
    check_pair_types(tokenizer, model, path)
    if model.images is not None:
        check_special_tokens(model.images, tokenizer)
    if options.draft is not None and not options.draft.config.decoder.borrows:
        check_tokenizer(Path(options.draft.model), options.draft.config.vocab_size)
        check_vocabulary(tokenizer, Path(options.draft.model))
    parser = config.tool_call_parser
    calls = tool_format(parser, tokenizer.chat_template)
    answers = deployment.capacity.max_slots + config.max_queued_requests
    responses = response_template(parser, calls, path, tokenizer, max_answers=answers) if generates else None
    tokenizer_check.finish()
    checked = Checked(
        config,
        isa,
        machine,
        deployment,
        path,
        tokenizer,
        model.vocab_size,
        model.images,
        purpose,
        sampling_defaults,
        calls,
        reasoning_format(config.reasoning_parser, tokenizer.chat_template),
        responses,
        started.key_sources,
        adapters,
        hosts=hosts,
    )
    return replace(checked, kv_disk=open_store(checked, model))


class Service:
    """The engine and the HTTP server from start to end, and the signals that stop them."""

    def __init__(
        self,
        checked: Checked,
        listeners: Sequence[Listener],
        worker_command: Sequence[str],
        kv_feed: KVFeed | None = None,
        trace: TraceSink | None = None,
        *,
        link: GatewayLink | None = None,
    ) -> None:
        self._checked = checked
        self._listeners = listeners
        self._service_manager = ServiceManager()
        bar = link is None and is_text(checked.config.log_format)
        self._display = LoadingDisplay(checked.name, self._service_manager, bar=bar)
        callbacks = EngineCallbacks(load_progress=self._display.update, given_up=lambda _reason: self._gave_up.set())
        self._images = None if checked.images is None else create_image_store(checked.config, checked.images)
        self._engine = make_engine(
            checked,
            callbacks,
            worker_command,
            kv_feed,
            trace,
            link=link,
            store=self._images,
            adapters=checked.adapters,
        )
        if checked.kv_disk is not None:
            checked.key_sources.on_reload = self._engine.keep_cache_groups
        self._traced = trace is not None
        self._link = link
        self._signals = StopSignals()
        self._gave_up = asyncio.Event()

    async def run(self) -> int:
        """Load, serve, drain. Returns the exit status."""
        loop = asyncio.get_running_loop()
        self._signals.handle(self._checked.key_sources, self._listeners[0].certificate)
        with self._display:
            starting = loop.create_task(self._engine.start())
            # Imported in a thread, so that the event loop can serve the workers meanwhile.
            parts = (self._checked, self._engine, self._listeners, self._images)
            http = await asyncio.to_thread(make_http_server, *parts, traced=self._traced, link=self._link)
            serving = loop.create_task(http.run_until_stopped())
            # Before the server is ready: making the tables for constraints holds the GIL for some tenths of a second,
            # which would stall all streams.
            preparing = asyncio.gather(starting, asyncio.to_thread(http.prepare))
            await _first_of(preparing, self._signals.stop.wait())
        try:
            if preparing.done():
                preparing.result()
                await self._serve_until_stopped(http)
            else:
                starting.cancel()
                await asyncio.wait([starting])
        except GroupFailed as error:
            _log.critical("the workers could not be started: %s", error)
            return EXIT_FAILED
        finally:
            if self._listeners[0].kept_open:
                http.accept_no_more()  # new connections wait for the next server instead of being refused
            await self._drain()
            await self._close(http, serving)
        return EXIT_FAILED if self._gave_up.is_set() else EXIT_OK

    async def _serve_until_stopped(self, http: HttpServer) -> None:
        # A full garbage collection over these objects would stall all streams for some tenths of a second.
        gc.freeze()
        name, listener = self._checked.name, self._listeners[0]
        http.listen()
        self._service_manager.ready(f"serving {name} at {listener.place}")
        task, template = self._checked.config.served_task, self._checked.tokenizer.chat_template
        example = example_for(task, has_chat_template=bool(template))
        announce(name, listener, example, needs_key=self._checked.key_sources.keys is not None)
        watchdog = asyncio.get_running_loop().create_task(self._service_manager.feed_watchdog(self._makes_progress))
        try:
            await _first_of(self._signals.stop.wait(), self._gave_up.wait())
        finally:
            watchdog.cancel()

    async def _drain(self) -> None:
        """Let running requests finish, unless the workers have ended or a second stop signal arrives."""
        self._service_manager.stopping()
        if not self._engine.takes_requests():
            return
        seconds = self._checked.config.drain_seconds
        _log.info("draining: running requests have %g s to finish", seconds)
        await _first_of(self._engine.drain(seconds), self._signals.hurry.wait())

    async def _close(self, http: HttpServer, serving: asyncio.Task[None]) -> None:
        """End running requests with an error, the workers, and the connections once the errors are sent."""
        stopping = asyncio.ensure_future(self._engine.stop(at_once=self._signals.hurry.is_set()))
        http.stop()
        both = asyncio.gather(stopping, serving)
        await _first_of(both, self._signals.hurry.wait())
        if self._signals.hurry.is_set():
            http.hurry()
            await self._engine.stop(at_once=True)
        await both
        if self._images is not None:
            self._images.close()
        self._service_manager.close()

    def _makes_progress(self) -> bool:
        return self._engine.is_alive() and self._engine.seconds_without_progress() < (watchdog_seconds() or 0)


async def _first_of(*waits: Awaitable[object]) -> None:
    """Wait for the first of `waits`, and cancel the tasks created here. Errors are raised later."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, wait in zip(tasks, waits, strict=True):
        if task is not wait and not task.done():
            task.cancel()
            await asyncio.wait([task])
