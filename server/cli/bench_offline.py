"""``numaserve bench offline``: whole steps of a model on its ranks, without a front end."""

from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Annotated, Any

import typer
from numaserve.configs import efficiencies as shipped_efficiencies
from numaserve.server.cli.bench_model import Model, Shape, Tp, about, checkpoint, deployments
from numaserve.server.cli.bench_options import EfficienciesFile, Json
from numaserve.server.cli.bench_report import MachineReport
from numaserve.server.cli.bench_steps import figures_of, step_row
from numaserve.server.cli.config_options import takes_settings
from numaserve.server.profiling.table import ceilings_view, phase_view
from numaserve.server.service.checks.instruction_set import instruction_set
from numaserve.workers.bench.group import launches_of, run_ranks
from numaserve.workers.bench.rows import Row
from numaserve.workers.bench.tasks import RunSteps, StepsRan
from numaserve.workers.models.load import load_model_config
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import Machine, isa_of
from numaserve.workers.planning.topology import Topology, read_topology


@takes_settings("chunked_prefill_size", "threads_per_worker")
def bench_offline(
    model: Model = None,
    *,
    shape: Shape = None,
    tp: Tp = None,
    batch_size: Annotated[
        list[int] | None, typer.Option(min=1, help="Number of sequences. Repeat the option for several. Default: 1.")
    ] = None,
    input_len: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 1024,
    output_len: Annotated[int, typer.Option(min=2, help="Generated tokens per sequence.")] = 64,
    prefills: Annotated[int, typer.Option(min=1, help="Number of times to run the prompts.")] = 3,
    options: dict[str, Any],
    operations: Annotated[
        bool, typer.Option("--operations/--no-operations", help="Show the time of each operation.")
    ] = True,
    efficiencies: EfficienciesFile = None,
    json: Json = None,
) -> None:
    """Run whole steps of a model without HTTP, compared with the minimum time to read its weights and KV cache."""
    # Imported here, because other commands do not need the native kernels.
    from numaserve.server.cli.bench_estimate import RunEstimate  # noqa: PLC0415
    from numaserve.server.cli.estimate_view import step_notes  # noqa: PLC0415
    from numaserve.workers.planning.estimate import Load, make_estimate  # noqa: PLC0415

    batches = batch_size or [1]
    limits = {"max_running_requests": max(batches), "context_length": max(32, input_len + output_len)}
    options |= limits | {"state_cache_gib": 0}
    with MachineReport("offline", json) as report, checkpoint(model, shape, report.say) as (name, path):
        isa = instruction_set().name
        report.console.print(f"{isa}: {name}", highlight=False)
        rows: list[Row] = []
        known, topology = load_efficiencies(efficiencies or shipped_efficiencies()[isa_of(isa)]), read_topology()

        def step_tokens(wanted: DeploymentOptions, config: ModelConfig) -> int:
            if input_len <= wanted.max_step_tokens:
                return wanted.max_step_tokens
            report.say("estimating the best size of steps")
            load = Load(input_len, output_len, max(batches))
            found = make_estimate(wanted, config, topology, machine=_measured(topology), efficiencies=known, load=load)
            for note in step_notes(found):
                report.console.print(note, highlight=False)
            return found.step_tokens

        for deployment in deployments(name, path, tp, options, step_tokens):
            with launches_of(deployment) as (launches, segment):
                tasks = [RunSteps(launch, batches, input_len, output_len, prefills) for launch in launches]
                answers = run_ranks(tasks, StepsRan, segment, report.say)
            what = about(name, deployment)
            launch = deployment.launches[0]
            config = load_model_config(path, launch.settings)
            estimate = RunEstimate(launch, config, topology, known, input_len, output_len)
            for phases in zip(*(answer.phases for answer in answers), strict=True):
                figures = figures_of(phases)
                rows.append(step_row(what, phases, figures, estimate))
                for each in figures:
                    report.write({"table": "operations"} | what | {"batch": phases[0].batch} | each.record())
                if operations:
                    report.console.print(phase_view(figures[0], figures), ceilings_view(figures[0].ceilings))
        report.add(rows)


@cache
def _measured(topology: Topology) -> Machine:
    """Return this machine, measured in a process of its own, which moves to the cores of a node."""
    from numaserve.workers.bench.machine import measure  # noqa: PLC0415

    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, topology).result()
