"""``numaserve bench kernels``: the operations of a Program one by one, on the cores of one rank."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

from numaserve.kernels import Team
from numaserve.workers.bench.encoder_shapes import ENCODERS
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.operations.attention import bench_decode, bench_prefill
from numaserve.workers.bench.operations.barrier import bench_barrier
from numaserve.workers.bench.operations.experts import bench_experts
from numaserve.workers.bench.operations.gemm import bench_gemm
from numaserve.workers.bench.operations.latent import LatentCase, bench_latent
from numaserve.workers.bench.operations.recurrent import DeltaCase, bench_recurrent
from numaserve.workers.bench.operations.small_ops import bench_pool, bench_rows, bench_sampler
from numaserve.workers.bench.programs import FORMATS, Format
from numaserve.workers.bench.rows import Effort, Rows
from numaserve.workers.bench.sweep import MLPS, Findings, Mlp, bench_sweep
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import KvCacheDtype
from numaserve.workers.planning.placement import RankCores, place_ranks
from numaserve.workers.planning.topology import read_topology
from numaserve.workers.process import numa

KV_DTYPES: tuple[KvCacheDtype, ...] = get_args(KvCacheDtype)
OPERATIONS = ("gemm", "encoders", "experts", "attention", "latent", "recurrent", "small", "barrier")


@dataclass(frozen=True)
class Sizes:
    """The measured sizes, and the duration of measurements."""

    models: Sequence[str] = ("llama-1b", "llama-8b")  # of `shapes.SHAPES`; the first also gives the small operations
    parts: Sequence[str] = ("qkv", "o", "mlp")
    m_values: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    encoders: Sequence[str] = tuple(ENCODERS)
    encoder_m: Sequence[int] = (8, 128, 512)  # few texts, and batches of texts
    expert_models: Sequence[str] = ("moe-2b", "moe-shared")  # of `EXPERT_SHAPES`
    expert_tokens: Sequence[int] = (1, 16, 1024)
    latent: Sequence[LatentCase] = (
        LatentCase(16, 8192),
        LatentCase(16, 32768),
        LatentCase(16, 8192, sequences=8),
        LatentCase(16, 32768, sequences=8),
        LatentCase(16, 2048, new=2048),
    )
    recurrent: Sequence[DeltaCase] = (
        *(DeltaCase(values, new=1024) for values in (32, 48)),
        *(DeltaCase(values, sequences=count) for values in (32, 48) for count in (1, 8, 32)),
        DeltaCase(64, new=1024, rule="state_space"),
        DeltaCase(32, new=1024, rule="key_delta"),
        *(DeltaCase(64, sequences=count, rule="state_space") for count in (1, 8, 32)),
        *(DeltaCase(32, sequences=count, rule="key_delta") for count in (1, 8, 32)),
    )
    prefill: int = 4096
    decode: int = 8192
    tokens: Sequence[int] = (1, 16, 512)
    sweep: Sequence[Mlp] = MLPS
    sweep_m: Sequence[int] = (1, 16, 24, 64, 512)
    effort: Effort = field(default_factory=Effort)


QUICK = Sizes(
    models=("llama-1b",),
    parts=("mlp",),
    m_values=(1, 16, 512),
    encoders=("bge-base",),
    expert_models=("moe-2b",),
    expert_tokens=(1, 512),
    latent=(LatentCase(16, 8192),),
    recurrent=(DeltaCase(32, new=512), DeltaCase(32)),
    tokens=(1, 512),
    sweep_m=(512,),
    effort=Effort(seconds=0.2, most=50),
)


@dataclass(frozen=True)
class Case:
    """Rows that share a program."""

    name: str
    run: Callable[[Meter, Sequence[int]], Rows]  # the meter of a team, and the team's processors


def make_cases(operations: Sequence[str], formats: Sequence[str], sizes: Sizes) -> list[Case]:
    """Return the cases of some operations, or all cases if none is named. Raises `OperatorError` for an unknown
    name."""
    _check("--op", operations, OPERATIONS)
    chosen = _chosen_formats(formats)
    makers: dict[str, Callable[[], Iterator[Case]]] = {
        "gemm": lambda: _gemm_cases("gemm", chosen, sizes.models, sizes.m_values, sizes),
        "encoders": lambda: _gemm_cases("encoders", chosen, sizes.encoders, sizes.encoder_m, sizes),
        "experts": lambda: _expert_cases(chosen, sizes),
        "attention": lambda: _attention_cases(sizes),
        "latent": lambda: _latent_cases(sizes),
        "recurrent": lambda: _recurrent_cases(sizes),
        "small": lambda: _small_cases(sizes),
        "barrier": lambda: iter([Case("barrier", bench_barrier)]),
    }
    return [case for name in OPERATIONS if name in operations or not operations for case in makers[name]()]


def sweep_cases(formats: Sequence[str], sizes: Sizes, findings: Findings | None = None) -> list[Case]:
    """Return the sweeps of some formats, or all sweeps if none is named; `findings` collects their choices. Raises
    `OperatorError` for an unknown name."""
    return [
        _case(
            f"sweep {format} {mlp.name}",
            partial(bench_sweep, mlp=mlp, format=format, m_values=sizes.sweep_m, findings=findings),
            sizes,
        )
        for format in _chosen_formats(formats)
        for mlp in sizes.sweep
    ]


def _chosen_formats(names: Sequence[str]) -> list[Format]:
    _check("--format", names, list(dict.fromkeys(each.name for each in FORMATS)))
    return [each for each in FORMATS if each.name in names or not names]


def enter_node(threads: int | None) -> tuple[Team, RankCores]:
    """Move this process to the cores and memory of the first node, as a rank on it would. Raises `OperatorError`."""
    cores = place_ranks(read_topology(), 1, threads, reserve_core=False).ranks[0]
    numa.bind_memory_to(cores.node)
    numa.warn_of_refusal()
    return Team(cores.cpus), cores


def _gemm_cases(
    operation: str, formats: Sequence[Format], models: Sequence[str], m_values: Sequence[int], sizes: Sizes
) -> Iterator[Case]:
    for format in formats:
        for model in models:
            for part in sizes.parts:
                run = partial(bench_gemm, model=model, part=part, format=format, m_values=m_values)
                yield _case(f"{operation} {format} {model} {part}", run, sizes)


def _expert_cases(formats: Sequence[Format], sizes: Sizes) -> Iterator[Case]:
    for format in formats:
        for model in sizes.expert_models:
            run = partial(bench_experts, model=model, format=format, m_values=sizes.expert_tokens)
            yield _case(f"experts {format} {model}", run, sizes)


def _attention_cases(sizes: Sizes) -> Iterator[Case]:
    for model in sizes.models:
        for dtype in KV_DTYPES:
            prefill = partial(bench_prefill, model=model, tokens=sizes.prefill, kv_dtype=dtype)
            yield _case(f"attention prefill {model} {dtype}", prefill, sizes)
            decode = partial(bench_decode, model=model, context=sizes.decode, kv_dtype=dtype)
            yield _case(f"attention decode {model} {dtype}", decode, sizes)


def _latent_cases(sizes: Sizes) -> Iterator[Case]:
    for case in sizes.latent:
        phase = "decode" if case.new == 1 else "prefill"
        yield _case(f"latent {phase} {case.sequences} x {case.context}", partial(bench_latent, case=case), sizes)


def _recurrent_cases(sizes: Sizes) -> Iterator[Case]:
    for case in sizes.recurrent:
        name = f"{case.rule} {case.values} heads, {case.sequences} x {case.new}"
        yield _case(name, partial(bench_recurrent, case=case), sizes)


def _small_cases(sizes: Sizes) -> Iterator[Case]:
    model = sizes.models[0]
    yield _case(f"small operations {model}", partial(bench_rows, model=model, tokens=sizes.tokens), sizes)
    yield _case(f"pooling {model}", partial(bench_pool, model=model, tokens=sizes.tokens), sizes)
    yield _case(f"sampler {model}", partial(bench_sampler, model=model), sizes)


def _case(name: str, run: Callable[[Meter, Effort], Rows], sizes: Sizes) -> Case:
    return Case(name, lambda meter, _: run(meter, sizes.effort))


def _check(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise OperatorError(f"{option} {name}: expected {', '.join(known)}")
