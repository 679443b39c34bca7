"""Every goal of a machine with AMX next to the figure that it reaches, in one run of some minutes.

python tests/bench/bench_amx.py [--json FILE]

The run measures products, attention and experts in this process, and whole steps with `bench offline`. On another
machine the goals are printed alone. The goals are those of `amx_goals.py`, and the exit status does not depend on them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amx_goals import ELSEWHERE, GOALS, LARGE, MIXTURE, PROMPT, SHARED, SMALL, STREAMED, STREAMS, Goal, Record
from numaserve.kernels import isa
from numaserve.server.cli.bench_report import MachineReport
from numaserve.workers.bench.kernels import Case, Sizes, enter_node, make_cases
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.rows import Row, Rows

Say = Callable[[str], None]
OFFLINE = [sys.executable, "-m", "numaserve.server.cli.main", "bench", "offline", "--tp", "1", "--no-operations"]


@dataclass(frozen=True)
class Kernels:
    """Some cases of `bench kernels`, with weights from memory or left in the caches."""

    operation: str
    formats: Sequence[str]
    sizes: Sizes
    weights_of: str = "memory"

    def cases(self) -> list[Case]:
        """Return the cases that goals are about: of attention only prompts, with a KV cache in bf16."""
        cases = make_cases([self.operation], self.formats, self.sizes)
        if self.operation != "attention":
            return cases
        return [case for case in cases if case.name.startswith("attention prefill") and case.name.endswith(" bf16")]


KERNELS = (
    Kernels("gemm", ("bf16", "int8"), Sizes(models=(SMALL,), m_values=(64, 128, 512))),
    Kernels("gemm", ("int4", "mxfp4", "fp8"), Sizes(models=(SMALL,), m_values=(512,))),
    Kernels("gemm", ("bf16", "int8"), Sizes(models=(SMALL,), m_values=(512,)), weights_of="caches"),
    Kernels("gemm", ("bf16", "int4"), Sizes(models=(LARGE,), m_values=(1,))),
    Kernels("gemm", ("int8",), Sizes(models=(LARGE,), m_values=(1, 512))),
    Kernels("attention", (), Sizes(models=(SMALL, LARGE), prefill=1024)),
    Kernels("attention", (), Sizes(models=(SMALL, LARGE), prefill=4096)),
    Kernels("experts", ("bf16",), Sizes(expert_models=(MIXTURE, SHARED), expert_tokens=(1024,))),
)
# Runs of whole steps, as options of `bench offline`.
STEPS: Mapping[str, Sequence[str]] = {
    PROMPT: ("--shape", SMALL, "--quantization", "bf16", "--input-len", "1024", "--output-len", "2"),
    STREAMS: (
        *("--shape", STREAMED, "--quantization", "bf16", "--batch-size", "64"),
        *("--input-len", "64", "--output-len", "516", "--prefills", "1"),
    ),
}


def kernel_records(kernels: Sequence[Kernels], say: Say) -> Iterator[Record]:
    """Yield the rows of some kernels."""
    team, cores = enter_node(None)
    for each in kernels:
        meter = Meter(team, evicts=each.weights_of == "memory")
        for case in each.cases():
            say(f"{case.name}, weights of {each.weights_of}")
            for row in case.run(meter, cores.cpus):
                yield {"table": row.table} | row.what | row.figures | {"weights_of": each.weights_of}


def step_records(run: str, options: Sequence[str], say: Say) -> list[Record]:
    """Return the operations of one `bench offline`, which runs in processes of its own."""
    say(f"bench offline {' '.join(options)}")
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as lines:
        subprocess.run([*OFFLINE, *options, "--json", lines.name], check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in Path(lines.name).read_text().splitlines()]
    return [each for record in records if record["table"] == "operations" for each in operation_records(run, record)]


def operation_records(run: str, record: Mapping[str, Any]) -> Iterator[Record]:
    """Yield a row for each operation of a phase in a line of `bench offline`, without the totals."""
    read = record["ceilings"]["read_bytes_s"]
    for cost in record["costs"]:
        if cost["calls"] and cost["format"]:
            about = {"table": "operation", "run": run, "phase": record["name"], "operation": cost["name"]}
            figures = {name: cost[name] for name in ("ms", "share", "ceiling", "of_ceiling", "gb_s")}
            yield about | figures | {"of_read": cost["gb_s"] and cost["gb_s"] * 1e9 / read}


def goal_rows(records: Sequence[Record]) -> Rows:
    """Yield a row for each goal: the limit, and the figure of the worst row, if there is one."""
    for about, goals in GOALS.items():
        for goal in goals:
            what = {"about": about, "goal": goal.what, "wanted": goal.wanted()}
            yield Row("goals", what, _figures(goal, goal.worst(records)))
    for each in ELSEWHERE:
        yield Row("goals", {"about": f"by {each.measured_by}", "goal": each.what, "wanted": each.wanted}, {})


def _figures(goal: Goal, row: Record | None) -> dict[str, Any]:
    if row is None:
        return {"of_measured": None, "met": None, "of_random": None}
    met = "yes" if goal.met(row) else "no"
    # What reading bounds comes nowhere near a peak.
    random = row.get("of_random") if row.get("ceiling") == "flops" else None
    return {"of_measured": row[goal.figure], "met": met, "of_random": random}


def records_of(say: Say) -> Iterable[Record]:
    """Yield all that is measured."""
    yield from kernel_records(KERNELS, say)
    for run, options in STEPS.items():
        yield from step_records(run, options, say)


def main() -> int:
    """Measure where there is AMX; print the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    with MachineReport("amx", parser.parse_args().json) as report:
        records: list[Record] = []
        if isa().startswith("amx"):
            for record in records_of(report.say):
                report.write(dict(record))
                records.append(record)
        else:
            report.console.print(f"{isa()}: this processor has no AMX, or is told not to use it; nothing is measured")
        report.add(goal_rows(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
