"""``numaserve bench host``: measurements of a model on a new host, next to the estimate and to published figures."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from numaserve.server.cli.bench_options import EfficienciesFile, Json
from numaserve.server.cli.bench_run import check_completed, run_load
from numaserve.server.cli.config_options import takes_settings
from numaserve.server.cli.planned import THIS, described_host, read_planned
from numaserve.server.service.model.model_argument import served_name
from numaserve.workers.planning.roofline.machine import Machine
from numaserve.workers.planning.topology import Topology, read_topology
from numaserve.workers.weights.hub import resolve_model

if TYPE_CHECKING:
    from numaserve.server.loadtest.server_load import Say
    from numaserve.workers.planning.options import DeploymentOptions

_LEAST_CONTEXT, _LEAST_OUTPUT = 32, 16  # tokens of a sequence, and of answers that warm a server up
_VOCABULARY = 30_000  # most token ids of prompts, as without --vocab-size


@takes_settings(
    *("tp", "chunked_prefill_size", "threads_per_worker", "mem_fraction_static", "kv_cache_gib", "state_cache_gib"),
    "max_running_requests",
)
def bench_host(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model: Hugging Face folder, .gguf file, hub id, or 'demo'.")
    ],
    *,
    input_len: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 1024,
    output_len: Annotated[int, typer.Option(min=2, help="Generated tokens per request.")] = 1024,
    num_prompts: Annotated[
        int, typer.Option(min=1, help="Number of requests that are sent one at a time. Their median is reported.")
    ] = 3,
    host: Annotated[
        str,
        typer.Option(
            help="Description of this host for the estimate: `this` measures the host. Otherwise a host that numaserve "
            "describes, or the .yaml file that `numaserve doctor --write` wrote."
        ),
    ] = THIS,
    server_scenario: Annotated[
        bool,
        typer.Option(
            "--server-scenario/--no-server-scenario",
            help="Also search for the highest rate of requests within the latency limits of --mlperf-task.",
        ),
    ] = True,
    mlperf_task: Annotated[
        str | None,
        typer.Option(
            help="Task of MLPerf Inference whose latency limits apply in the server scenario. Default: the task of the "
            "model's sizes, or llama3.1-8b."
        ),
    ] = None,
    duration: Annotated[
        float, typer.Option(min=0.1, help="Seconds of each run of the server scenario. MLPerf prescribes 600.")
    ] = 600.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of prompts and arrivals.")] = 1,
    options: dict[str, Any],
    efficiencies: EfficienciesFile = None,
    json: Json = None,
) -> None:
    """Serve a model on this host and measure it, compared with the estimate of `plan` and with published figures."""
    # Imported here, because other commands need neither the native kernels nor an HTTP client.
    from numaserve.configs import efficiencies as shipped_efficiencies  # noqa: PLC0415
    from numaserve.server.cli.bench_report import MachineReport  # noqa: PLC0415
    from numaserve.server.cli.estimate_view import step_notes  # noqa: PLC0415
    from numaserve.server.cli.host_load import measure_server, plan_scenario  # noqa: PLC0415
    from numaserve.server.cli.host_rows import OwnFigures, rate_rows  # noqa: PLC0415
    from numaserve.server.cli.own_server import own_server  # noqa: PLC0415
    from numaserve.server.loadtest.options import Traffic, Workload  # noqa: PLC0415
    from numaserve.workers.bench.mlperf import task_of  # noqa: PLC0415
    from numaserve.workers.planning.estimate import Estimate, Load, make_estimate  # noqa: PLC0415
    from numaserve.workers.planning.roofline.efficiency import load_efficiencies  # noqa: PLC0415

    context = max(_LEAST_CONTEXT, input_len + max(output_len, _LEAST_OUTPUT))
    given = {key: value for key, value in options.items() if value is not None}
    given |= {"task": "generate", "context_length": context}
    with MachineReport("host", json) as report:
        path = resolve_model(model)
        described = described_host(host)
        _, wanted, config = read_planned(path, described, given)
        task = task_of(config, mlperf_task)
        machine, topology = _host(described, report.say)
        known = load_efficiencies(efficiencies or shipped_efficiencies()[machine.isa])
        report.say("counting the work of each thread")

        def estimate(batch: int, options: DeploymentOptions) -> Estimate:
            load = Load(input_len, output_len, batch)
            return make_estimate(options, config, topology, machine=machine, efficiencies=known, load=load)

        alone = estimate(1, wanted)
        for note in step_notes(alone):
            report.console.print(f"estimate: {note}", highlight=False)
        planned = replace(wanted, max_step_tokens=alone.step_tokens, may_lengthen_steps=False)
        most = wanted.max_running_requests
        scenario = None
        if server_scenario:
            scenario = plan_scenario(task, duration, alone, most, partial(estimate, options=planned))
        workload = Workload(random_input_len=input_len, random_output_len=output_len)
        traffic = Traffic(seed=seed, vocab_size=min(config.vocab_size, _VOCABULARY))
        report.say(f"loading {model}")
        with own_server(model, given) as remote:
            work = measure_server(remote, workload, traffic, num_prompts=num_prompts, scenario=scenario, say=report.say)
            measured = run_load(work)
        check_completed([measured.requests])
        own = OwnFigures(served_name(model, path), wanted.settings.formats.linear or "as published", config, alone)
        report.add(own.request_rows(measured.requests))
        if scenario is not None:
            report.add(rate_rows(measured.runs))
            if measured.best is None:
                check_completed([run.summary for run in measured.runs if not run.summary.completed])
            report.add(own.server_rows(task, measured.best, scenario.planned_rate))


def _host(described: Machine | None, say: Say) -> tuple[Machine, Topology]:
    """Return the host to estimate for and its topology. This host is measured in processes of their own."""
    if described is not None:
        return described, described.topology()
    from numaserve.workers.bench.host import measure_host  # noqa: PLC0415
    from numaserve.workers.planning.doctor.host import read_processor  # noqa: PLC0415
    from numaserve.workers.planning.doctor.rates import machine_from  # noqa: PLC0415

    topology = read_topology()
    return machine_from(measure_host(topology, say), topology, read_processor().name or "this host"), topology
