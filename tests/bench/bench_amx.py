"""Every goal of a machine with AMX next to the figure that it reaches, in one run of at most four minutes.

python -m tests.bench.bench_amx [--base REV] [--json FILE]

The run measures ceilings, products, attention and experts in this process, and whole steps with `bench offline`. On
another machine the goals are printed alone. The goals are those of `amx_goals.py`, and the exit status does not depend
on them. With --base the kernels of this tree and of another commit are measured alternately instead.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from numaserve.kernels import Team, isa
from numaserve.kernels.build import build_digest
from numaserve.server.cli.bench_report import MachineReport
from numaserve.workers.bench.kernels import enter_node
from numaserve.workers.bench.meter import Meter, has_tile_registers
from numaserve.workers.bench.rows import Limits, Row, Rows
from numaserve.workers.planning.doctor.host import read_processor
from numaserve.workers.planning.found_blocking import Swept

from tests.bench.amx_cases import KERNELS, Kernels
from tests.bench.amx_goals import ELSEWHERE, GOALS
from tests.bench.amx_pairs import pair_rows
from tests.bench.goals import PROMPT, SMALL, STREAMED, STREAMS, Goal, Record

Say = Callable[[str], None]
OFFLINE = [sys.executable, "-m", "numaserve.server.cli.main", "bench", "offline", "--tp", "1", "--no-operations"]
FORMATS = ("bf16", "int8")  # that tiles multiply
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# Runs of whole steps, as options of `bench offline`.
STEPS: Mapping[str, Sequence[str]] = {
    PROMPT: ("--shape", SMALL, "--quantization", "bf16", "--input-len", "1024", "--output-len", "2"),
    STREAMS: (
        *("--shape", STREAMED, "--quantization", "bf16", "--batch-size", "64"),
        *("--input-len", "64", "--output-len", "516", "--prefills", "1"),
    ),
}


def kernel_records(kernels: Sequence[Kernels], team: Team, cpus: Sequence[int], say: Say) -> Iterator[Record]:
    """Yield the rows of some kernels."""
    for each in kernels:
        meter = Meter(team, evicts=each.weights_of == "memory")
        for case in each.cases():
            say(f"{case.name}, weights of {each.weights_of}")
            for row in case.run(meter, cpus):
                yield {"table": row.table} | row.what | row.figures | {"weights_of": each.weights_of}


def machine_row() -> Row:
    """Return the description of this machine and of the kernels."""
    processor = read_processor()
    swept = Swept.on(processor, isa(), build_digest()).model_dump()
    return Row("machine", {"name": processor.name} | swept | {"caches": " / ".join(cache_sizes())}, {})


def cache_sizes(folder: Path = CACHES) -> list[str]:
    """Return the sizes of the first processor's caches of data, the first level first."""
    levels = [path for path in sorted(folder.glob("index*")) if (path / "type").read_text().strip() != "Instruction"]
    return [(path / "size").read_text().strip() for path in levels]


def ceiling_rows(limits: Limits) -> Rows:
    """Yield the ceilings of the formats that tiles multiply. The nest is of one thread, the others of all threads."""
    ceilings = limits.ceilings
    for format, zeros in ceilings.flops_s.items():
        random, nest = limits.random_flops_s[format], limits.nest_flops_s[format]
        figures = {"read_gb_s": ceilings.read_rate / 1e9, "zeros_gflop_s": zeros / 1e9, "random_gflop_s": random / 1e9}
        figures |= {"nest_gflop_s": nest / 1e9}
        figures |= {"of_zeros_random": random / zeros, "of_zeros_nest": nest * ceilings.threads / zeros}
        yield Row("ceilings", {"format": format, "threads": ceilings.threads}, figures)


def step_records(run: str, options: Sequence[str], limits: Limits, say: Say) -> list[Record]:
    """Return the operations of one `bench offline`, which runs in processes of its own."""
    say(f"bench offline {' '.join(options)}")
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as lines:
        subprocess.run([*OFFLINE, *options, "--json", lines.name], check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in Path(lines.name).read_text().splitlines()]
    phases = [record for record in records if record["table"] == "operations"]
    return [each for record in phases for each in operation_records(run, record, limits.nest_flops_s)]


def operation_records(run: str, record: Mapping[str, Any], nests: Mapping[str, float]) -> Iterator[Record]:
    """Yield a row for each operation of a phase in a line of `bench offline`, without the totals."""
    ceilings = record["ceilings"]
    for cost in record["costs"]:
        if cost["calls"] and cost["format"]:
            about = {"table": "operation", "run": run, "phase": record["name"], "operation": cost["name"]}
            figures = {name: cost[name] for name in ("ms", "share", "ceiling", "of_ceiling", "gb_s")}
            figures |= {"of_read": cost["gb_s"] and cost["gb_s"] * 1e9 / ceilings["read_bytes_s"]}
            if cost["ceiling"] == "flops" and cost["format"] in nests:
                zeros = ceilings["flops_s"][cost["format"]] / ceilings["threads"]
                figures |= {"of_nest": cost["of_ceiling"] * zeros / nests[cost["format"]]}
            yield about | figures


def goal_rows(records: Sequence[Record]) -> Rows:
    """Yield a row for each goal: the limit, and the figure of the worst row, if there is one. Then yield what each
    missed goal would change."""
    missed: list[Row] = []
    for about, goals in GOALS.items():
        for goal in goals:
            worst = goal.worst(records)
            yield Row("goals", {"about": about, "goal": goal.what, "wanted": goal.wanted()}, _figures(goal, worst))
            if worst is not None and not goal.met(worst):
                missed.append(Row("missed goals", {"goal": f"{about}: {goal.what}", "would_change": goal.change}, {}))
    for each in ELSEWHERE:
        yield Row("goals", {"about": f"by {each.measured_by}", "goal": each.what, "wanted": each.wanted}, {})
    yield from missed


def _figures(goal: Goal, row: Record | None) -> dict[str, Any]:
    if row is None:
        return {"of_measured": None, "met": None, "of_zeros": None, "of_random": None, "of_nest": None}
    met = "yes" if goal.met(row) else "no"
    # What reading bounds comes nowhere near a peak.
    peaks = {"of_zeros": "of_ceiling", "of_random": "of_random", "of_nest": "of_nest"}
    computes = row.get("ceiling") == "flops"
    return {"of_measured": row[goal.figure], "met": met} | {
        shown: row.get(name) if computes else None for shown, name in peaks.items()
    }


def measure(report: MachineReport) -> list[Record]:
    """Return all that is measured, and write it."""
    team, cores = enter_node(None)  # once: afterwards this thread may use the first core alone
    limits = Meter(team).limits(FORMATS)
    report.add(ceiling_rows(limits))
    records: list[Record] = []
    for record in chain(
        kernel_records(KERNELS, team, cores.cpus, report.say),
        chain.from_iterable(step_records(run, options, limits, report.say) for run, options in STEPS.items()),
    ):
        report.write(dict(record))
        records.append(record)
    return records


def main() -> int:
    """Measure where there is AMX; print the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="commit whose kernels are compared with those of this tree")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with MachineReport("amx", options.json) as report:
        report.add([machine_row()])
        if not has_tile_registers(isa()):
            report.console.print(f"{isa()}: this processor has no AMX, or is told not to use it; nothing is measured")
            report.add(goal_rows([]))
        elif options.base is not None:
            report.add(pair_rows(options.base, report.say))
        else:
            report.add(goal_rows(measure(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
