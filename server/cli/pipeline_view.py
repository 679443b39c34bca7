"""The views of an estimate of pipeline stages on several hosts: tables, and a JSON record."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from typing import Any

from numaserve.server.cli.estimate_view import (
    advice,
    formats_text,
    load_text,
    memory_record,
    memory_table,
    phase_record,
    phase_tables,
)
from numaserve.server.cli.tables import figure_table, milliseconds, number
from numaserve.workers.planning.estimate import Estimate
from numaserve.workers.planning.needs import format_bytes
from numaserve.workers.planning.pipeline import PipelineEstimate, StageHost
from numaserve.workers.planning.simulation.phases import PhaseEstimate
from rich.console import Group
from rich.table import Table
from rich.text import Text

_ONE_STREAM = (
    "a token passes the hosts one after the other: more hosts raise the tokens/s of many sequences, and never lower the"
    " TPOT of one"
)


def pipeline_view(name: str, hosts: Sequence[StageHost], estimate: PipelineEstimate, *, explain: bool) -> Group:
    """Return tables of the memory of each host, of stages and links, and of the operations of the slowest stage of each
    phase. `explain`: also what its threads and ranks wait for."""
    stages, ranks = estimate.stages, estimate.ranks
    heading = Text(
        f"{name} on {len(stages)} hosts: {formats_text(hosts[0].options, stages[0])}, {ranks}"
        f" rank{'s' if ranks > 1 else ''} on each; {load_text(estimate.load)}"
    )
    names = [f"host {index} ({stage.machine.name})" for index, stage in enumerate(stages)]
    memory = [memory_table(stage.memory, f"Memory of {each}") for each, stage in zip(names, stages, strict=True)]
    changes = [line for each, stage in zip(names, stages, strict=True) for line in advice(stage, f"The part of {each}")]
    return Group(
        heading,
        *memory,
        *changes,
        _stage_table(estimate),
        _link_table(estimate),
        *phase_tables(_slowest_phases(stages), explain=explain),
        *(Text(f" {line}") for line in (*_totals(estimate), *_notes(hosts, estimate))),
    )


def pipeline_record(name: str, hosts: Sequence[StageHost], estimate: PipelineEstimate) -> dict[str, Any]:
    """Return the estimate as a JSON object; times are in seconds. `bytes` of the link are those of all ranks."""
    settings, decodes = hosts[0].options.settings, estimate.stages[0].load.batch
    return {
        "model": name,
        "weights": settings.formats.linear or "as published",
        "kv_cache": settings.kv_cache_dtype,
        "load": asdict(estimate.load),
        "fits": estimate.fits,
        "hosts": [_host_record(*each) for each in zip(hosts, estimate.stages, estimate.layers, strict=True)],
        "link": {
            "gbit_s": estimate.link.gbit_s,
            "latency_s": estimate.link.latency_s,
            "token_bytes": estimate.token_bytes,
            "chunk_bytes": estimate.chunks[0] * estimate.token_bytes,
            "chunk_s": estimate.hop_s(estimate.chunks[0]),
            "decode_bytes": decodes * estimate.token_bytes,
            "decode_s": estimate.hop_s(decodes),
        },
        "step_tokens": estimate.stages[0].step_tokens,
        "cohorts": estimate.cohorts,
        "ttft_s": estimate.ttft_s,
        "pass_s": estimate.pass_s,
        "tpot_s": estimate.tpot_s,
        "output_tokens_s": estimate.output_tokens_s,
        "prefill_tokens_s": estimate.prefill_tokens_s,
    }


def _host_record(host: StageHost, stage: Estimate, layers: int) -> dict[str, Any]:
    return {
        "machine": stage.machine.model_dump(),
        "efficiencies": host.efficiencies.source,
        "multiplied_by": stage.multiplied_by,
        "cores": stage.cores,
        "layers": layers,
        "fits": stage.fits,
        "remedies": stage.remedies,
        "memory": [memory_record(node) for node in stage.memory],
        "prefill": phase_record(stage.prefill),
        "decode": None if stage.decode is None else phase_record(stage.decode),
    }


def _stage_table(estimate: PipelineEstimate) -> Table:
    ends = list(accumulate(estimate.layers))
    decodes = [] if estimate.tpot_s is None else ["decode step, ms", "GB read for it by a rank"]
    rows = figure_table("Stages", "host", "layers", "weights", "first chunk, ms", "prompt, ms", *decodes)
    for index, (stage, end, count) in enumerate(zip(estimate.stages, ends, estimate.layers, strict=True)):
        weights = format_bytes(sum(node.weights for node in stage.memory))
        times = [1e3 * stage.prefill.step_seconds[0], 1e3 * stage.prefill.seconds]
        if stage.decode is not None:
            times += [1e3 * stage.decode.seconds, stage.decode.nbytes / 1e9]
        rows.add_row(str(index), f"{end - count} to {end - 1}", weights, *map(number, times))
    return rows


def _link_table(estimate: PipelineEstimate) -> Table:
    link = estimate.link
    title = f"Link to the next host: {link.gbit_s:g} Gbit/s, {link.latency_us:g} µs"
    rows = figure_table(title, "rows of", "tokens", "MB", "ms")
    steps = {"a token": 1, "a chunk of a prompt": estimate.chunks[0]}
    if estimate.tpot_s is not None:
        steps["a decode step"] = estimate.stages[0].load.batch
    for name, tokens in steps.items():
        sizes = tokens * estimate.token_bytes / 1e6, 1e3 * estimate.hop_s(tokens)
        rows.add_row(name, str(tokens), *map(number, sizes))
    return rows


def _slowest_phases(stages: Sequence[Estimate]) -> list[PhaseEstimate]:
    """Return each phase of the host that needs most time for it."""
    prefills = [stage.prefill for stage in stages]
    decodes = [stage.decode for stage in stages if stage.decode is not None]
    return [_slowest(phases) for phases in (prefills, decodes) if phases]


def _slowest(phases: Sequence[PhaseEstimate]) -> PhaseEstimate:
    host = max(range(len(phases)), key=lambda index: phases[index].seconds)
    return replace(phases[host], name=f"{phases[host].name} on host {host}")


def _totals(estimate: PipelineEstimate) -> list[str]:
    prefill = f"{estimate.prefill_tokens_s:.0f} tokens/s in prefill of many prompts"
    if estimate.tpot_s is None or estimate.pass_s is None:
        return [f"last prompt answered after {milliseconds(estimate.ttft_s)}", prefill]
    cohorts = f"{estimate.cohorts} step{'s' if estimate.cohorts > 1 else ''} in flight"
    return [
        f"time to first token (TTFT) {milliseconds(estimate.ttft_s)}",
        f"time per output token (TPOT) {milliseconds(estimate.tpot_s)} with {cohorts}: a token passes all hosts in "
        f"{milliseconds(estimate.pass_s)}, including {milliseconds(estimate.hops_s)} on links",
        f"{estimate.output_tokens_s:.1f} tokens/s in decoding, {prefill}",
    ]


def _notes(hosts: Sequence[StageHost], estimate: PipelineEstimate) -> Iterator[str]:
    notes = [*dict.fromkeys(note for stage in estimate.stages for note in stage.notes), _ONE_STREAM]
    if estimate.cohorts < len(hosts) and estimate.tpot_s is not None:
        notes.append(
            f"{estimate.cohorts} of {len(hosts)} hosts works at a time while sequences generate: --batch-size of at"
            f" least {len(hosts)} lets all work"
        )
    sources = dict.fromkeys(host.efficiencies.source or "an unknown processor" for host in hosts)
    yield from (f"note: {note}" for note in notes)
    yield f"kernel efficiencies were measured on {' and '.join(sources)}"
