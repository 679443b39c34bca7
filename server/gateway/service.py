"""The gateway process: place the models, start model processes, pass requests on, and shut down."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import uvloop
from numaserve.server.common.version import installed_version
from numaserve.server.config.serve import ServeConfig
from numaserve.server.connection.app_server import AppServer
from numaserve.server.connection.bounds import ConnectionLimits
from numaserve.server.connection.descriptors import check_descriptors
from numaserve.server.connection.listen import Listener
from numaserve.server.dispatch.directory import SocketDirectory
from numaserve.server.gateway.adapters import Adapters
from numaserve.server.gateway.app import with_layers
from numaserve.server.gateway.gateway import Gateway
from numaserve.server.gateway.models.fleet import Fleet
from numaserve.server.gateway.models.metrics import FleetMetrics
from numaserve.server.gateway.models.models_file import ModelsFile, read_models_file
from numaserve.server.gateway.models.placement import Placed, Plan, plan_models
from numaserve.server.gateway.models.process import DESCRIPTORS, MODEL_COMMAND
from numaserve.server.gateway.models.process_main import EXIT_MISTAKE
from numaserve.server.gateway.models.resident import FleetOptions
from numaserve.server.gateway.own_routes import OwnRoutes, Shown
from numaserve.server.gateway.passing import IDLE_CONNECTIONS
from numaserve.server.http.browser_rules import BrowserRules
from numaserve.server.service.announce import Example, announce, example_for
from numaserve.server.service.bind import bind_listeners, warn_of_reach
from numaserve.server.service.checks.instruction_set import instruction_set_for, name_of
from numaserve.server.service.process.ending import end_process
from numaserve.server.service.process.key_sources import KeySources
from numaserve.server.service.process.logs import set_up_logging
from numaserve.server.service.process.stop_signals import StopSignals
from numaserve.server.service.process.systemd import ServiceManager
from numaserve.server.tokenizer import own_chat_template
from numaserve.workers.planning.topology import read_topology

EXIT_OK = 0
EXIT_FAILED = 1
_POLL_S = 0.05

_log = logging.getLogger(__name__)


def run_fleet(
    path: Path, config: ServeConfig, max_loaded: int | None = None, command: Sequence[str] = MODEL_COMMAND
) -> NoReturn:
    """Serve the models of the file at `path` until a stop signal, and end the process. Raises `OperatorError`.

    Only the gateway's keys of `config` are used. `max_loaded` overrides the file's. `command` starts a model process.
    """
    key_sources = KeySources(config.api_key_file)  # first: no other code may see a key in the environment
    set_up_logging(config.log_level, config.log_format)
    key_sources.log_sharing()
    models = read_models_file(path, max_loaded)
    connections = _connections(models)
    with contextlib.ExitStack() as closing:
        listeners = [closing.enter_context(each) for each in bind_listeners(config)]
        if key_sources.keys is None:
            warn_of_reach(listeners)
        kernels = instruction_set_for({spec.config.backend for spec in models.models.values()})
        plan = plan_models(models, read_topology(), name_of(kernels))
        folder = SocketDirectory(len(models.models))
        closing.callback(folder.remove)
        options = FleetOptions(
            folder.path,
            config.drain_seconds,
            models.load_wait_s,
            log_level=config.log_level,
            log_format=config.log_format,
            command=command,
            kernels=kernels,
        )
        limits = ConnectionLimits(connections, keep_alive_seconds=config.keep_alive_seconds)
        life = _Life(config, models, plan, key_sources, listeners, limits=limits)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            status = runner.run(life.run(options))
            closing.close()
            end_process(status)


class _Life:
    """One launch of the fleet and its gateway, from start to end."""

    def __init__(
        self,
        config: ServeConfig,
        models: ModelsFile,
        plan: Plan,
        key_sources: KeySources,
        listeners: Sequence[Listener],
        *,
        limits: ConnectionLimits,
    ) -> None:
        self._config = config
        self._models = models
        self._plan = plan
        self._key_sources = key_sources
        self._listeners = listeners
        self._limits = limits
        self._example = _example_of(plan.placed[models.default])
        self._service_manager = ServiceManager()
        self._signals = StopSignals()

    async def run(self, options: FleetOptions) -> int:
        """Serve until a stop signal. Returns the exit status."""
        loop = asyncio.get_running_loop()
        self._signals.handle(self._key_sources, self._listeners[0].certificate)
        self._service_manager.status("loading models")
        residents = self._plan.residents
        metrics = FleetMetrics(residents)
        fleet = Fleet(residents, self._plan.capacity, self._models.max_loaded, options, metrics)
        gateway = self._gateway(fleet, metrics)
        http = self._http_server(gateway)
        serving = loop.create_task(http.run_until_stopped())
        fleet.start()
        try:
            status = await self._until_ready(fleet)
            if status == EXIT_OK and not self._signals.stop.is_set():
                await self._serve(http)
        finally:
            gateway.close()
            await self._end(fleet, http, serving)
        return status

    def _gateway(self, fleet: Fleet, metrics: FleetMetrics) -> Gateway:
        placed = self._plan.placed.items()
        routes = OwnRoutes(
            fleet=fleet,
            names=_names(self._models),
            shown={name: Shown(each.own_name, each.context_length, each.images) for name, each in placed},
            keys=self._key_sources.keys,
            is_local=all(each.is_local for each in self._listeners),
            metrics=metrics,
            version=installed_version(),
            adapters=Adapters(fleet, _adapters(self._models)),
            ui=self._config.ui,
            root_path=self._config.root_path or "",
        )
        return Gateway(routes, self._models.default)

    def _http_server(self, gateway: Gateway) -> AppServer:
        config, keys = self._config, self._key_sources.keys
        browsers = BrowserRules(
            cors_origins=config.cors_origin or (),
            allowed_hosts=tuple(name.lower() for name in config.allowed_host or ()),
            open_locally=keys is None and any(each.is_loopback for each in self._listeners),
        )
        certificate = self._listeners[0].certificate
        return AppServer(
            with_layers(gateway, browsers, config.root_path),
            [each.socket for each in self._listeners],
            self._limits,
            None if certificate is None else certificate.context,
            at_once=not any(each.kept_open for each in self._listeners),
        )

    async def _until_ready(self, fleet: Fleet) -> int:
        """Wait for the models that are loaded at start. Returns `EXIT_OK`, or the exit status for the first that fails.

        A stop signal ends the wait.
        """
        while not self._signals.stop.is_set() and not fleet.is_ready():
            failed = next((name for name in fleet.at_start if fleet.state(name) == "failed"), None)
            if failed is not None:
                _log.critical("model %s could not be started", failed)
                return EXIT_MISTAKE if fleet.exit_status(failed) == EXIT_MISTAKE else EXIT_FAILED
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._signals.stop.wait(), _POLL_S)
        return EXIT_OK

    async def _serve(self, http: AppServer) -> None:
        gc.freeze()
        listener, default = self._listeners[0], self._models.default
        http.listen()
        self._service_manager.ready(f"serving {len(self._models.models)} models at {listener.place}")
        announce(default, listener, self._example, needs_key=self._key_sources.keys is not None)
        watchdog = asyncio.get_running_loop().create_task(self._service_manager.feed_watchdog(lambda: True))
        await self._signals.stop.wait()
        watchdog.cancel()

    async def _end(self, fleet: Fleet, http: AppServer, serving: asyncio.Task[None]) -> None:
        self._service_manager.stopping()
        if self._listeners[0].kept_open:
            http.accept_no_more()
        stopping = asyncio.create_task(fleet.stop())
        hurrying = asyncio.create_task(self._signals.hurry.wait())
        await asyncio.wait((stopping, hurrying), return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            fleet.hurry()
        await stopping
        hurrying.cancel()
        http.stop()
        await serving
        self._service_manager.close()


def _example_of(placed: Placed) -> Example:
    """Return the example request for a model, loaded or not. Raises `OperatorError` for damaged files."""
    config = placed.spec.config
    has_template = config.chat_template is not None or own_chat_template(Path(placed.root)) is not None
    return example_for(config.served_task, has_chat_template=has_template)


def _connections(models: ModelsFile) -> int:
    """Return the number of connections that clients may have. Raises `OperatorError` if there are too few."""
    running = sum(each.config.running_limit for each in models.models.values())
    count = len(models.models)
    # A request to all models takes one connection to each model process, in addition to the client's.
    return check_descriptors(running, 1 + count, count * (IDLE_CONNECTIONS + DESCRIPTORS))


def _names(models: ModelsFile) -> dict[str, str]:
    """Return every name that requests may use, with the model that it names."""
    names = {name: name for name in models.models}
    for name, spec in models.models.items():
        names |= dict.fromkeys(spec.config.served_model_name or (), name)
    return names


def _adapters(models: ModelsFile) -> dict[str, dict[str, str]]:
    """Return the paths of the adapters that each model is started with, by name, of models with memory for some."""
    return {
        name: {each.name: str(each.path) for each in spec.config.lora or ()}
        for name, spec in models.models.items()
        if spec.config.lora_places
    }
