"""The construction of the engine and of the HTTP server from checked parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs
from numaserve.server.adapters.adapters import Adapters
from numaserve.server.answers.reasoning.format import ReasoningFormat
from numaserve.server.answers.response_template.template import ResponseTemplate
from numaserve.server.answers.tools.format import ToolFormat
from numaserve.server.common.version import installed_version
from numaserve.server.config.option_types import DrafterName
from numaserve.server.config.serve import ServeConfig
from numaserve.server.connection.listen import Listener
from numaserve.server.engine.config import EngineCallbacks, EngineConfig
from numaserve.server.engine.engine import Engine
from numaserve.server.engine.views.traces import TraceSink
from numaserve.server.generation.purpose import Purpose
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.images.store import ImageStore
from numaserve.server.kv_disk.store import Store
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import SchedulerConfig
from numaserve.server.service.bind import GatewayLink
from numaserve.server.service.hosts import StageHost
from numaserve.server.service.images import make_vision
from numaserve.server.service.model.model_argument import served_name, served_names
from numaserve.server.service.process.key_sources import KeySources
from numaserve.server.speculation.server_drafters import ServerDrafters
from numaserve.server.supervisor.group import GroupSpec, WorkerGroup
from numaserve.server.supervisor.remote_group import AgentStage
from numaserve.server.supervisor.staged_group import StagedGroup
from numaserve.server.supervisor.supervisor import Supervisor
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.shm_comm.mask_board import create_mask_board
from numaserve.shm_comm.progress_board import create_progress_board
from numaserve.shm_comm.segment import create_segment
from numaserve.workers.interface.drafters import WORKER_DRAFTERS
from numaserve.workers.interface.images import ImageInput
from numaserve.workers.interface.protocol import Launch, mask_rows
from numaserve.workers.planning.deployment import Deployment
from numaserve.workers.planning.topology import Topology

if TYPE_CHECKING:
    from numaserve.server.connection.bounds import ConnectionLimits
    from numaserve.server.kv_events.feed import KVFeed
    from numaserve.server.service.http import HttpServer


@dataclass(frozen=True)
class Checked:
    """The parts of a server, checked before any weight is read."""

    config: ServeConfig
    instruction_set: str | None  # of the kernels; None for the reference backend
    machine: Topology  # the nodes and cores that this process may use
    deployment: Deployment
    path: Path  # of the model
    tokenizer: TokenizerProtocol
    vocab_size: int  # token ids the model has rows for
    images: ImageInput | None  # None: the model takes no images
    purpose: Purpose
    sampling_defaults: Sampling
    tool_format: ToolFormat | None
    reasoning_format: ReasoningFormat | None
    response_template: ResponseTemplate | None
    key_sources: KeySources
    adapters: Adapters | None = None  # None: the server has memory for no adapter
    kv_disk: Store | None = None  # None: cached prefixes are in memory alone
    hosts: Sequence[StageHost | None] = ()  # of each stage, None for this host; empty: all stages are on this host

    @property
    def names(self) -> tuple[str, ...]:
        """The model's names in the API; answers and metrics use the first."""
        return served_names(self.config, self.path)

    @property
    def name(self) -> str:
        """The first of the names."""
        return self.names[0]

    @property
    def drafters(self) -> tuple[DrafterName, ...]:
        """The drafters in use; `auto` stands for the front end's drafters and one of the workers."""
        in_workers = WORKER_DRAFTERS.get(self.deployment.launches[0].drafter)
        name = None if in_workers is None else in_workers.name
        return tuple(each for each in self.config.drafters if each not in WORKER_DRAFTERS or each == name)

    @cached_property
    def metrics(self) -> Metrics:
        """The metrics of this server, created once."""
        return Metrics(self.name)


def make_engine(
    checked: Checked,
    callbacks: EngineCallbacks,
    worker_command: Sequence[str],
    kv_feed: KVFeed | None = None,
    trace: TraceSink | None = None,
    *,
    link: GatewayLink | None = None,
    store: ImageStore | None = None,
    adapters: Adapters | None = None,
) -> Engine:
    """Return the engine, not yet started. `worker_command` is the command of a worker; workers read images from the
    `store`."""
    config, deployment, drafters = checked.config, checked.deployment, checked.drafters
    kv_disk = checked.kv_disk
    scheduler = Scheduler(
        SchedulerConfig(
            deployment.capacity,
            deployment.shared_step_tokens,
            deployment.least_step_tokens,
            enable_prefix_cache=config.prefix_cache and deployment.reuses_prefixes,
            kv_disk=kv_disk is not None,
            whole_prompts=deployment.whole_prompts,
            windows=deployment.windows,
            rows_per_tile=0 if store is None else store.settings.rows_per_tile,
            placeholder=None if store is None else store.settings.token,
            whole_images=store is not None and store.settings.whole,
            vocab_size=checked.vocab_size,
            stages=deployment.launches[0].settings.stages,
            worker_drafter=deployment.launches[0].drafter or None,
            target_itl_s=None if config.target_itl_ms is None else config.target_itl_ms / 1000,
        ),
        None if kv_feed is None else kv_feed.log,
        ServerDrafters(drafters) if drafters else None,
    )
    world_size = deployment.launches[0].world_size
    is_staged = deployment.launches[0].settings.stages > 1
    ring_factory = partial(create_segment, world_size, deployment.ring_lanes, deployment.ring_slot_bytes)
    board_factory = partial(create_mask_board, mask_rows(deployment.capacity.max_slots), checked.vocab_size)
    launches: Sequence[Launch] = deployment.launches
    if store is not None:
        launches = [structs.replace(each, image_fd=store.fd, image_tiles=store.num_tiles) for each in launches]
    if kv_disk is not None:
        launches = [structs.replace(each, disk_folder=str(kv_disk.folder)) for each in launches]
    spec = GroupSpec(
        launches,
        ring_factory if world_size > 1 else None,
        worker_command,
        board_factory,
        partial(create_progress_board, world_size),
        inherited_fd=-1 if link is None else link.lifeline_fd,
        adapters=tuple if adapters is None else adapters.at_launch,
    )
    engine = Engine(
        EngineConfig(
            model=checked.name,
            version=installed_version(),
            max_queued_requests=config.max_queued_requests,
            max_queued_s=config.max_queued_seconds,
            step_deadline_s=config.step_deadline_seconds,
            overlap=config.overlap,
            drafters=drafters,
            mask_patience_s=config.mask_deadline_ms / 1000,
            resume_timeout_s=config.resume_timeout,
            multiplied_by=deployment.multiplied_by,
            hosts=["" if each is None else str(each.agent.address) for each in checked.hosts],
        ),
        Supervisor(spec, make_group=partial(StagedGroup, agents=_agents(checked)) if is_staged else WorkerGroup),
        scheduler,
        checked.tokenizer,
        checked.metrics,
        callbacks=callbacks,
        trace=trace,
        adapters=adapters,
        disk_index=kv_disk,
    )
    if kv_disk is not None:
        kv_disk.on_problem = engine.disk_failed
    return engine


def _agents(checked: Checked) -> list[AgentStage | None]:
    deployment = checked.deployment
    sizes = deployment.ring_lanes, deployment.ring_slot_bytes, mask_rows(deployment.capacity.max_slots)
    return [
        None if each is None else AgentStage(each.agent, str(each.model), *sizes, checked.vocab_size)
        for each in checked.hosts
    ]


def connection_limits(config: ServeConfig, link: GatewayLink | None) -> ConnectionLimits:
    """Return the bounds on a connection.

    With a `link` to a gateway, the gateway's bound on slow readers applies instead: the gateway reads the answer of a
    slow client in large pieces, minutes apart.
    """
    from numaserve.server.connection.bounds import ConnectionLimits  # noqa: PLC0415 the workers are loading by now

    limits = ConnectionLimits(keep_alive_seconds=config.keep_alive_seconds)
    return limits if link is None else replace(limits, write_seconds=None)


def make_http_server(
    checked: Checked,
    engine: Engine,
    listeners: Sequence[Listener],
    store: ImageStore | None = None,
    *,
    traced: bool = False,
    link: GatewayLink | None = None,
) -> HttpServer:
    """Return the HTTP server. Call it in a thread: its imports are slow.

    On listeners that the service manager keeps open, the server accepts connections only from `listen` on, once the
    model is loaded: waiting is better for clients than a refusal.
    """
    from numaserve.server.generation.context import ApiContext  # noqa: PLC0415 the workers are loading by now
    from numaserve.server.http.browser_rules import BrowserRules  # noqa: PLC0415
    from numaserve.server.http.limits import ApiLimits  # noqa: PLC0415
    from numaserve.server.service.http import HttpServer  # noqa: PLC0415

    config = checked.config
    vision = None if store is None else make_vision(config, store, checked.tokenizer, checked.metrics)
    context = ApiContext(
        engine=engine,
        tokenizer=checked.tokenizer,
        metrics=checked.metrics,
        model_name=checked.name,
        other_names=checked.names[1:],
        own_name=served_name(config.model, checked.path),
        model_path=str(checked.path),
        version=installed_version(),
        limits=ApiLimits(
            context_length=checked.deployment.capacity.context_length,
            vocab_size=checked.vocab_size,
            max_sequences=checked.deployment.capacity.max_slots + config.max_queued_requests,
            request_timeout=config.request_timeout,
        ),
        api_keys=checked.key_sources.keys,
        log_prompts=config.log_prompts,
        strict_fields=config.strict_fields,
        ui=config.ui,
        traced=traced,
        tokenizer_info=config.tokenizer_info,
        takes_predictions="prediction" in config.drafters,
        sampling_defaults=checked.sampling_defaults,
        tool_format=checked.tool_format,
        reasoning_format=checked.reasoning_format,
        response_template=checked.response_template,
        purpose=checked.purpose,
        vision=vision,
        adapters=checked.adapters or Adapters(),
        lora_root=config.lora_root,
        is_local=all(each.is_local for each in listeners),
        root_path=config.root_path or "",
        sse_ping_seconds=config.sse_ping_seconds,
        browsers=BrowserRules(
            cors_origins=config.cors_origin or (),
            allowed_hosts=tuple(name.lower() for name in config.allowed_host or ()),
            open_locally=checked.key_sources.keys is None and any(each.is_loopback for each in listeners),
        ),
    )
    certificate = listeners[0].certificate
    tls = None if certificate is None else certificate.context
    at_once = not any(each.kept_open for each in listeners)
    limits = connection_limits(config, link)
    return HttpServer(context, [each.socket for each in listeners], limits, tls, at_once=at_once)
