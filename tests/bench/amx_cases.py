"""The kernels that `bench_amx.py` measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from numaserve.kernels import Team
from numaserve.workers.bench.kernels import Case, Sizes, make_cases
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.operations.share import bench_share
from numaserve.workers.bench.programs import FORMATS, Format
from numaserve.workers.bench.rows import Effort, Rows

from tests.bench.goals import LARGE, LARGE_SHARE, MIXTURE, SHARE_THREADS, SHARED, SMALL

_EFFORT = Effort(seconds=0.3)


@dataclass(frozen=True)
class Kernels:
    """Some cases of `bench kernels`, with weights from memory or left in the caches."""

    operation: str
    formats: Sequence[str]
    sizes: Sizes
    weights_of: str = "memory"

    def cases(self) -> list[Case]:
        """Return the cases that goals are about: of attention only prompts, with a KV cache in bf16."""
        if self.operation == "share":
            return share_cases(self.formats, self.sizes)
        cases = make_cases([self.operation], self.formats, self.sizes)
        if self.operation != "attention":
            return cases
        return [case for case in cases if case.name.startswith("attention prefill") and case.name.endswith(" bf16")]


def share_cases(formats: Sequence[str], sizes: Sizes) -> list[Case]:
    """Return the cases of one thread's shares."""

    def run(_: Meter, cpus: Sequence[int], *, model: str, part: str, format: Format) -> Rows:
        what = {"model": model, "part": part, "format": format, "m_values": sizes.m_values}
        return bench_share(Meter(Team(cpus[:1])), sizes.effort, **what, threads=SHARE_THREADS)

    return [
        Case(f"share {format} {model} {part}", partial(run, model=model, part=part, format=format))
        for format in FORMATS
        if str(format) in formats
        for model in sizes.models
        for part in sizes.parts
    ]


def _sizes(**sizes: Any) -> Sizes:
    return Sizes(effort=_EFFORT, **sizes)


KERNELS = (
    Kernels("gemm", ("bf16", "int8"), _sizes(models=(SMALL,), m_values=(64, 128, 512))),
    Kernels("gemm", ("int4", "mxfp4", "fp8"), _sizes(models=(SMALL,), m_values=(512,))),
    Kernels("gemm", ("bf16", "int8"), _sizes(models=(SMALL,), m_values=(512,)), weights_of="caches"),
    Kernels("gemm", ("bf16", "int4"), _sizes(models=(LARGE,), m_values=(1,))),
    Kernels("gemm", ("int8",), _sizes(models=(LARGE,), m_values=(1, 512))),
    Kernels("share", ("bf16", "int8"), _sizes(models=(LARGE, LARGE_SHARE), m_values=(512,))),
    Kernels("attention", (), _sizes(models=(SMALL, LARGE), prefill=1024)),
    Kernels("attention", (), _sizes(models=(SMALL, LARGE), prefill=4096)),
    Kernels("experts", ("bf16",), _sizes(expert_models=(MIXTURE, SHARED), expert_tokens=(1024,))),
)
