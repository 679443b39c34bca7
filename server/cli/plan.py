"""``numaserve plan``: an estimate of a model's memory and speed on a host or several, without reading a weight."""

from __future__ import annotations

import json as jsonlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from numaserve.server.cli.bench_options import EfficienciesFile
from numaserve.server.cli.config_options import takes_settings
from numaserve.server.cli.planned import THIS, PlanHosts, described_host, read_planned
from numaserve.server.cli.tables import stdout_console
from numaserve.server.config.serve import ServeConfig
from numaserve.server.config.tasks import Task
from numaserve.server.images.geometry import most_tiles
from numaserve.server.loadtest.report.report import JsonLines
from numaserve.server.service.model.model_argument import served_name
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.topology import read_topology
from numaserve.workers.weights.hub import resolve_model
from rich.console import Console, Group

if TYPE_CHECKING:
    from numaserve.workers.planning.estimate import Load
    from numaserve.workers.planning.pipeline import StageHost

EXIT_DOES_NOT_FIT = 1
_INPUT_LEN, _OUTPUT_LEN = 1024, 1024
# Assumptions: an adapter that hosts of this size have, and a message between threads that wait in two kernels.
_LINK_GBIT_S, _LINK_US = 100.0, 50.0
_Shown = tuple[Group, dict[str, Any], bool]  # tables; the JSON object; whether the model fits


@takes_settings(
    *("tp", "backend", "task", "chunked_prefill_size", "threads_per_worker", "mem_fraction_static"),
    *("draft_model", "draft_quantization", "speculative", "state_cache_gib", "image_memory_gib"),
)
def plan(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Model: folder with a config.json, .gguf file, hub id, or 'demo'."),
    ] = None,
    *,
    shape: Annotated[
        str | None,
        typer.Option(help="Plan for a shape of `numaserve bench offline --shape` instead of MODEL."),
    ] = None,
    host: PlanHosts = None,
    input_len: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens per prompt. Default: 1024, or the context of an encoder if that is less."),
    ] = None,
    output_len: Annotated[
        int | None,
        typer.Option(min=2, help="Generated tokens per sequence. Default: 1024, or none if the task is not generate."),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, max=4096, help="Number of sequences that run at the same time.")
    ] = 1,
    max_running_requests: Annotated[
        int | None, typer.Option(help="Number of sequences to plan KV cache for. Default: the batch size.")
    ] = None,
    context_length: Annotated[
        int | None, typer.Option(help="Tokens per sequence to plan KV cache for. Default: prompt and output tokens.")
    ] = None,
    options: dict[str, Any],
    kv_disk_gib: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=float(1 << 20), help="Size of the cached prefixes on disk, in GiB. Default: no disk tier."
        ),
    ] = None,
    efficiencies: EfficienciesFile = None,
    json: Annotated[Path | None, typer.Option("--json", help="File to append the estimate to as a JSON line.")] = None,
    explain: Annotated[
        bool,
        typer.Option(help="Also show what the threads of a rank and the ranks wait for."),
    ] = False,
    skew: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=4.0,
            help="Skew of the routing to experts: 0 for even routing, 1 for Zipf's law.",
        ),
    ] = 0.0,
    link_gbit_s: Annotated[
        float | None,
        typer.Option(min=0.001, max=1e6, help=f"Bandwidth between two hosts, in Gbit/s. Default: {_LINK_GBIT_S:g}."),
    ] = None,
    link_us: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1e9, help=f"Latency of a message between two hosts, in microseconds. Default: {_LINK_US:g}."
        ),
    ] = None,
) -> None:
    """Estimate memory and speed of a model on a host from the model's configuration, without reading weights.

    The tables list the operations of the busiest rank. `MB` are the weights and KV cache that an operation reads.
    `share` is its part of the phase's time. `of bound` is its lower bound at the limits of the machine, divided by its
    time. `bound by` is the cause of most of its time: memory, computing, cores (norms and other work on rows) or other
    ranks. With several hosts they are those of the slowest one.

    The exit status is 1 if the model does not fit.
    """
    from numaserve.workers.planning.estimate import Load  # noqa: PLC0415

    names = host or [THIS]
    _check_options(len(names), {"link-gbit-s": link_gbit_s, "link-us": link_us}, {"kv-disk-gib": kv_disk_gib})
    lines = JsonLines(json, "--json")
    with _configuration(model, shape) as (name, path):
        limits = {"max_running_requests": max_running_requests or batch_size, "context_length": context_length}
        serve_config, config, hosts = _read_hosts(path, names, options | limits | {"pp": len(names)}, efficiencies)
        load = Load(
            _input_len(serve_config, config, input_len), _output_len(serve_config.served_task, output_len), batch_size
        )
        planned = _Planned(name, config, load, skew, explain)
        with Console(stderr=True).status("counting the work of each thread"):
            if len(hosts) == 1:
                view, record, fits = _on_one_host(
                    planned, hosts[0], serve_config.settings.max_image_pixels, kv_disk_gib
                )
            else:
                view, record, fits = _on_hosts(planned, hosts, link_gbit_s, link_us)
    stdout_console().print(view)
    lines.write(record)
    if not fits:
        raise typer.Exit(EXIT_DOES_NOT_FIT)


@dataclass(frozen=True)
class _Planned:
    """The model and load of a plan, and the tables to show."""

    name: str
    config: ModelConfig
    load: Load
    skew: float
    explain: bool


def _on_one_host(planned: _Planned, host: StageHost, max_image_pixels: int, kv_disk_gib: float | None) -> _Shown:
    # Imported here, as below, because other commands do not need the native kernels.
    from numaserve.server.cli.estimate_view import estimate_record, estimate_view  # noqa: PLC0415
    from numaserve.server.cli.kv_disk_plan import plan_disk, with_disk  # noqa: PLC0415
    from numaserve.workers.planning.estimate import make_estimate  # noqa: PLC0415

    estimate = make_estimate(
        host.options,
        planned.config,
        host.topology,
        machine=host.machine,
        efficiencies=host.efficiencies,
        load=planned.load,
        skew=planned.skew,
    )
    disk = None if kv_disk_gib is None else plan_disk(estimate, kv_disk_gib)
    if disk is not None:
        estimate = with_disk(estimate, disk)
    images, what = planned.config.images, (planned.name, host.options, estimate, host.efficiencies)
    tiles = 0 if images is None else most_tiles(images, max_image_pixels)
    view = estimate_view(*what, explain=planned.explain, image_tiles=tiles, disk=disk)
    return view, estimate_record(*what, image_tiles=tiles, disk=disk), estimate.fits


def _on_hosts(planned: _Planned, hosts: list[StageHost], link_gbit_s: float | None, link_us: float | None) -> _Shown:
    from numaserve.server.cli.pipeline_view import pipeline_record, pipeline_view  # noqa: PLC0415
    from numaserve.workers.planning.links import Link  # noqa: PLC0415
    from numaserve.workers.planning.pipeline import make_pipeline_estimate  # noqa: PLC0415

    link = Link(link_gbit_s or _LINK_GBIT_S, _LINK_US if link_us is None else link_us)
    estimate = make_pipeline_estimate(hosts, planned.config, load=planned.load, link=link, skew=planned.skew)
    view = pipeline_view(planned.name, hosts, estimate, explain=planned.explain)
    return view, pipeline_record(planned.name, hosts, estimate), estimate.fits


def _check_options(hosts: int, of_several: Mapping[str, object], of_one: Mapping[str, object]) -> None:
    """Raise `OperatorError` for an option that has no meaning with this number of hosts. The options are given by name,
    and are None where left out."""
    refused = of_several if hosts == 1 else of_one
    for option, given in refused.items():
        if given is not None:
            wanted = "several hosts: repeat --host" if hosts == 1 else "one host: name one --host"
            raise OperatorError(f"--{option} needs {wanted}, or leave the option out")


def _read_hosts(
    path: Path, names: list[str], options: dict[str, Any], efficiencies: Path | None
) -> tuple[ServeConfig, ModelConfig, list[StageHost]]:
    """Return the configuration of a server of the model at `path`, the model's own, and the hosts of these names. This
    host is measured once. Raises `OperatorError`."""
    from numaserve.configs import efficiencies as shipped_efficiencies  # noqa: PLC0415
    from numaserve.workers.bench.machine import measure  # noqa: PLC0415
    from numaserve.workers.planning.pipeline import StageHost  # noqa: PLC0415
    from numaserve.workers.planning.roofline.efficiency import load_efficiencies  # noqa: PLC0415

    found: dict[str, StageHost] = {}
    for name in dict.fromkeys(names):
        described = described_host(name)
        serve_config, wanted, config = read_planned(path, described, options)
        topology = read_topology() if described is None else described.topology()
        machine = described or measure(topology)
        known = load_efficiencies(efficiencies or shipped_efficiencies()[machine.isa])
        found[name] = StageHost(wanted, topology, machine, known)
    return serve_config, config, [found[name] for name in names]


def _input_len(serve_config: ServeConfig, model: ModelConfig, given: int | None) -> int:
    """Return the number of tokens of a prompt. Many encoders have fewer than other models have by default."""
    if given is not None or not model.bidirectional:
        return given or _INPUT_LEN
    return min(_INPUT_LEN, serve_config.context_length or model.max_position)


def _output_len(task: Task, given: int | None) -> int:
    """Return the number of generated tokens. Raises `OperatorError` if tokens are requested of a task without any."""
    if task == "generate":
        return given or _OUTPUT_LEN
    if given is not None:
        raise OperatorError(
            f"--output-len needs a task that generates tokens, and --task {task} does not: leave --output-len out"
        )
    return 0


@contextmanager
def _configuration(model: str | None, shape: str | None) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of the model's configuration; that of a shape is written to a temporary folder."""
    if (model is None) == (shape is None):
        raise OperatorError("name either a MODEL or a shape with --shape")
    if model is not None:
        path = resolve_model(model, weights=False)
        yield served_name(model, path), path
        return
    from numaserve.workers.bench.shapes import MODEL_SHAPES  # noqa: PLC0415

    if shape not in MODEL_SHAPES:
        raise OperatorError(f"--shape {shape} is not a known shape: use one of {', '.join(MODEL_SHAPES)}")
    with tempfile.TemporaryDirectory(prefix="numaserve-plan-") as folder:
        (Path(folder) / "config.json").write_text(jsonlib.dumps(MODEL_SHAPES[shape].config()))
        yield shape, Path(folder)
