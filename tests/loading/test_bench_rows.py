import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from numaserve.kernels import Team, peak_flops
from numaserve.workers.bench.gemma4_shapes import Gemma4Shape
from numaserve.workers.bench.hybrid_shapes import ExpertSizes, HybridShape
from numaserve.workers.bench.kernels import KV_DTYPES, QUICK, Sizes, make_cases
from numaserve.workers.bench.lfm2_shapes import Lfm2Shape
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.operations.barrier import bench_barrier
from numaserve.workers.bench.operations.latent import LatentCase
from numaserve.workers.bench.operations.recurrent import DeltaCase
from numaserve.workers.bench.programs import (
    BF16,
    FORMATS,
    copies_beyond_caches,
    copies_in_step,
    random_matrix,
    same_matrices,
)
from numaserve.workers.bench.reading import checkpoint_files, read_seconds
from numaserve.workers.bench.rows import Effort, Limits, Row, Times, Work, timed_row
from numaserve.workers.bench.shapes import MODEL_SHAPES, SHAPES, random_checkpoint, write_checkpoint
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import Ceilings
from numaserve.workers.models.config.safetensors_files import SafetensorsFiles
from numaserve.workers.models.load import load_model_config, open_model
from numaserve.workers.planning.roofline.expert_shapes import EXPERT_SHAPES, ExpertShape
from numaserve.workers.program.ops.experts import Routing
from numaserve.workers.weights.checkpoint import check_checkpoint
from numaserve.workers.weights.safetensors_source import SafetensorsSource

CEILINGS = Ceilings("amx", 4, read_bytes_s=1e9, flops_s={"bf16": 1e9, "int8": 2e9})
TINY = Sizes(
    models=("tiny",),
    m_values=(1, 65),
    encoders=("minilm",),
    encoder_m=(3, 66),
    expert_models=("tiny",),
    expert_tokens=(1, 33),
    latent=(LatentCase(3, 70, sequences=2), LatentCase(3, 40, new=40)),
    recurrent=(
        DeltaCase(16, new=3),
        *(DeltaCase(16, sequences=2, rule=rule) for rule in ("gated_delta", "state_space", "key_delta")),
    ),
    prefill=40,
    decode=70,
    tokens=(1, 33),
    effort=Effort(seconds=0, least=1),
)


@pytest.fixture
def fixed_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured that takes long, nor more memory read than a tiny model has."""
    ceilings = Ceilings("any", 1, 1e9, {format.name: 1e9 for format in FORMATS} | {"fp32": 1e9})
    monkeypatch.setattr(Meter, "limits", lambda *_: Limits(ceilings, ceilings.flops_s))
    monkeypatch.setattr("numaserve.workers.bench.programs.bytes_beyond_caches", lambda: 1)
    monkeypatch.setattr("numaserve.workers.bench.programs._STEP_BYTES", 1)


def rows_of(*operations: str, formats: Sequence[str] = ()) -> list[Row]:
    meter = Meter(Team([-1]))
    return [row for case in make_cases(operations, formats, TINY) for row in case.run(meter, [0])]


def test_work_is_measured_by_what_bounds_it() -> None:
    assert Work(nbytes=3e6, flops=2e6).bound(CEILINGS) == (0.003, "read")
    assert Work(nbytes=3e6, flops=8e6, format="int8").bound(CEILINGS) == (0.004, "flops")
    row = timed_row("t", {"M": 1}, Times(best=0.004, median=0.006), Work(3e6, 2e6), Limits(CEILINGS, {}))
    assert row.figures["of_ceiling"] == 0.75
    assert row.figures["of_ceiling_median"] == 0.5
    assert (row.figures["gb_s"], row.figures["ceiling"]) == (0.75, "read")
    assert "of_random" not in row.figures


def test_work_has_its_fraction_of_the_peak_of_random_operands() -> None:
    limits, times = Limits(CEILINGS, {"bf16": 8e8, "int8": 1e9}), Times(best=0.01, median=0.02)
    row = timed_row("t", {}, times, Work(flops=6e6, format="int8"), limits)
    assert (row.figures["of_ceiling"], row.figures["of_random"]) == pytest.approx((0.3, 0.6))
    assert "of_random" not in timed_row("t", {}, times, Work(nbytes=1e6), limits).figures
    assert limits.better(Limits(CEILINGS, {"bf16": 9e8, "int8": 1e8})).random_flops_s == {"bf16": 9e8, "int8": 1e9}
    assert "of_nest" not in row.figures


def test_work_of_a_team_has_its_fraction_of_the_nests_of_its_threads() -> None:
    team = Ceilings("amx", 4, 1e9, {"bf16": 1e9})
    limits = Limits(team, {"bf16": 8e8}, {"bf16": 1.5e8})
    row = timed_row("t", {}, Times(best=0.01, median=0.02), Work(flops=3e6), limits)
    assert row.figures["of_nest"] == pytest.approx(0.5)


@pytest.mark.usefixtures("fixed_ceilings")
def test_every_format_is_multiplied_with_every_number_of_rows() -> None:
    found = [(row.what["format"], row.what["product"], row.what["M"]) for row in rows_of("gemm")]
    products = ["qkv", "o", "gate_up", "down"]
    assert sorted(found) == sorted((str(f), p, m) for f in FORMATS for p in products for m in TINY.m_values)


@pytest.mark.usefixtures("fixed_ceilings")
def test_products_of_encoders_have_a_table_of_their_own() -> None:
    rows = rows_of("encoders", formats=["bf16", "int8"])
    sizes = {"qkv": (1152, 384), "o": (384, 384), "up": (1536, 384), "down": (384, 1536)}
    found = [(row.table, row.what["product"], row.what["N"], row.what["K"], row.what["M"]) for row in rows]
    assert sorted(found) == sorted(
        (f"encoders, {format}", name, *size, m)
        for format in ("bf16", "int8")
        for name, size in sizes.items()
        for m in (3, 66)
    )
    assert all(float(row.figures["best_us"] or 0) > 0 for row in rows)


@pytest.mark.usefixtures("fixed_ceilings")
def test_attention_and_small_operations_give_rows_with_times() -> None:
    rows = rows_of("attention", "small")
    assert [(row.what["kv"], row.what["phase"]) for row in rows[:6]] == [
        (dtype, phase) for dtype in KV_DTYPES for phase in ("prefill", "decode")
    ]
    assert {str(row.what["operation"]) for row in rows[6:]} >= {
        "rms_norm",
        "divided_norm",
        "rope_store",
        "pool",
        "sample, greedy",
    }
    assert all(float(row.figures["best_us"] or 0) > 0 for row in rows)


@pytest.mark.usefixtures("fixed_ceilings")
def test_experts_of_every_format_are_measured_by_what_the_tokens_choose() -> None:
    rows = rows_of("experts")
    products = [row for row in rows if row.what["operation"] in ("moe_gate_up", "moe_down")]
    assert sorted((row.what["format"], row.what["M"]) for row in products) == sorted(
        (str(format), m) for format in FORMATS for m in (1, 33) for _ in range(2)
    )
    assert all(float(row.figures["best_us"] or 0) > 0 for row in rows)
    one, many = (row for row in products if row.what["format"] == "bf16" and row.what["operation"] == "moe_gate_up")
    # One token goes to two of six experts of 32, and to the shared one of 64.
    experts = 2 * 32 * 64
    assert float(one.figures["gflop_s"] or 0) * float(one.figures["best_us"] or 0) == pytest.approx(
        2 * (2 * experts + 2 * experts) / 1e3
    )
    assert float(many.figures["gb_s"] or 0) > 0


@pytest.mark.usefixtures("fixed_ceilings")
def test_the_tokens_of_a_benchmark_choose_all_experts_about_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = ExpertShape(256, Routing(num_experts=96, top_k=4), 32)
    monkeypatch.setitem(EXPERT_SHAPES, "tiny", shape)
    tokens = (16, 1024)
    rows = [
        row
        for case in make_cases(["experts"], ["bf16"], replace(TINY, expert_tokens=tokens))
        for row in case.run(Meter(Team([-1])), [0])
        if row.what["operation"] == "moe_down"
    ]
    read = {row.what["M"]: float(row.figures["gb_s"] or 0) * float(row.figures["best_us"] or 0) * 1e3 for row in rows}
    expert = 2 * shape.hidden * shape.intermediate  # bytes
    assert read[1024] == pytest.approx(96 * expert)
    # 16 tokens choose 47 experts in the mean: 96 * (1 - (92 / 96) ** 16).
    assert 40 * expert < read[16] < 55 * expert


@pytest.mark.usefixtures("fixed_ceilings")
def test_latent_attention_is_measured_by_what_the_cache_holds() -> None:
    rows = rows_of("latent")
    operations = ["latent_store", "latent_absorb", "attention", "latent_values"]
    assert [(row.what["operation"], row.what["new"]) for row in rows] == [(o, n) for n in (1, 40) for o in operations]
    assert all(float(row.figures["best_us"] or 0) > 0 for row in rows)
    figures = rows[2].figures
    best = float(figures["best_us"] or 0)
    assert float(figures["gb_s"] or 0) * best == pytest.approx(2 * 70 * 576 * 2 / 1e3)
    assert float(figures["gflop_s"] or 0) * best == pytest.approx(2 * 70 * 3 * 2 * (576 + 512) / 1e3)


@pytest.mark.usefixtures("fixed_ceilings")
def test_the_gated_delta_rule_is_measured_by_its_states() -> None:
    rows = rows_of("recurrent")
    rule = [row for row in rows if row.table == "recurrent"]
    assert [(row.what["new"], row.what["sequences"], row.what["rule"]) for row in rule] == [
        (3, 1, "gated_delta"),
        (1, 2, "gated_delta"),
        (1, 2, "state_space"),
        (1, 2, "key_delta"),
    ]
    figures, state = rule[1].figures, 16 * (128 * 128 + 8) * 4
    best = float(figures["best_us"] or 0)
    assert float(figures["gb_s"] or 0) * best == pytest.approx(2 * 2 * state / 1e3)
    assert float(figures["gflop_s"] or 0) * best == pytest.approx(2 * 6 * 16 * 128 * 128 / 1e3)
    others = [row for row in rows if row.table != "recurrent"]
    names = [(row.what["operation"], row.what["rows"]) for row in others]
    gated = [(name, count) for count in (3, 2) for name in ("causal_conv", "gated_head_norm")]
    spaces, keyed = ("causal_conv", "multiply"), ("causal_conv", "key_decays", "gated_head_norm")
    assert names == [*gated, *((name, 2) for name in (*spaces, *keyed))]
    figures, row_bytes = others[2].figures, (2 * 16 + 16) * 128 * 4
    moved = float(figures["gb_s"] or 0) * float(figures["best_us"] or 0) * 1e3
    assert moved == pytest.approx((4 + 2 * (3 + 3) + 2 * (1 + 1)) * row_bytes)  # weights, states, rows
    figures, state = rule[2].figures, 16 * (128 * 64 + 4) * 4
    best = float(figures["best_us"] or 0)
    assert float(figures["gb_s"] or 0) * best == pytest.approx(2 * 2 * state / 1e3)


def test_every_format_has_a_peak() -> None:
    team = Team([-1])
    assert all(peak_flops(team, format) > 0 for format in [*(each.name for each in FORMATS), "fp32"])


def test_only_what_is_named_is_measured() -> None:
    assert [case.name for case in make_cases(["attention"], [], QUICK)] == [
        f"attention {phase} llama-1b {dtype}" for dtype in KV_DTYPES for phase in ("prefill", "decode")
    ]
    assert [case.name for case in make_cases(["gemm"], ["int8"], QUICK)] == ["gemm int8 llama-1b mlp"]
    assert [case.name for case in make_cases(["encoders"], ["int8"], QUICK)] == ["encoders int8 bge-base mlp"]
    with pytest.raises(OperatorError, match="--op fft: expected gemm, encoders, experts, attention"):
        make_cases(["fft"], [], QUICK)
    with pytest.raises(OperatorError, match="--format int3: expected bf16, int8, "):
        make_cases([], ["int3"], QUICK)


def test_a_random_checkpoint_is_a_model_and_is_gone_afterwards() -> None:
    with random_checkpoint("tiny") as folder:
        config, source = load_model_config(folder), SafetensorsSource(SafetensorsFiles(folder))
        assert (config.hidden_size, config.num_layers, config.vocab_size) == (64, 2, 320)
        assert set(source.names()) == set(SHAPES["tiny"].tensors())
        assert all(seconds > 0 for seconds in read_seconds(checkpoint_files(folder), threads=2, repetitions=1))
    assert not folder.exists()


def test_a_shape_that_is_none_or_does_not_fit_the_disk_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(OperatorError, match="--shape huge: unknown shape; expected one of tiny, "),
        random_checkpoint("huge"),
    ):
        pass
    made: list[Path] = []
    monkeypatch.setattr("numaserve.workers.bench.shapes.shutil.disk_usage", lambda f: made.append(f) or _Usage())
    with pytest.raises(OperatorError, match="set TMPDIR to a folder with more space"), random_checkpoint("tiny"):
        pass
    assert not made[0].exists()


class _Usage:
    free = 1000


def test_the_config_of_a_shape_is_one_that_is_served(tmp_path: Path) -> None:
    for name, shape in MODEL_SHAPES.items():
        (tmp_path / "config.json").write_text(json.dumps(shape.config()))
        config = load_model_config(tmp_path)
        assert (config.num_layers, config.decoder.head.tied) == (shape.layers, shape.tied), name


@pytest.mark.parametrize("mlp", [96, ExpertSizes(4, 2, 32)])
@pytest.mark.parametrize("tied", [True, False])
def test_a_hybrid_shape_has_the_tensors_of_its_model(mlp: int | ExpertSizes, tied: bool, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, HybridShape(64, 4, 2, 1, 32, mlp, tied=tied, vocab=320, context=2048))
    check_checkpoint(open_model(tmp_path), load_model_config(tmp_path))


@pytest.mark.parametrize(
    "shape",
    [
        Gemma4Shape(64, 4, 1, 96, shared=2, wide=True, full_every=2, vocab=320, context=2048),
        Lfm2Shape(2048, 3, (1,), 96, vocab=320, context=2048),
    ],
)
def test_a_shape_of_mixed_layers_has_the_tensors_of_its_model(shape: Gemma4Shape | Lfm2Shape, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shape)
    check_checkpoint(open_model(tmp_path), load_model_config(tmp_path))


@pytest.mark.parametrize(
    ("name", "mib", "kib"),
    [
        ("gemma4-e2b", 0.0, 18),
        ("lfm2-1.2b", 0.15625, 12),
        ("qwen3.5-9b", 50.2, 32),
        ("qwen3.5-27b", 149.6, 64),
        ("qwen3.6-35b-a3b", 62.8, 20),
    ],
)
def test_a_published_shape_has_the_states_and_pages_of_its_model(
    name: str, mib: float, kib: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL_SHAPES[name].config()))
    model = load_model_config(tmp_path)
    for shares in ([1], [3, 2, 2]):
        parts = model.partition(shares).ranks
        assert sum(map(model.decoder.state_bytes, parts)) / 2**20 == pytest.approx(mib, rel=2e-3)
    (whole,) = model.partition([1]).ranks
    assert model.decoder.page_bytes(whole, "bf16") == 32 * kib * 1024


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_thread_is_after_the_barriers_where_it_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")  # nothing is compiled
    before = os.sched_getaffinity(0)
    try:
        (row,) = bench_barrier(Meter(Team([-1])), [min(before)])
        assert os.sched_getaffinity(0) == before
    finally:
        os.sched_setaffinity(0, before)
    assert "cannot build" in str(row.figures["openmp_ns"])


def test_copies_take_no_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numaserve.workers.bench.programs.bytes_beyond_caches", lambda: 1000)
    monkeypatch.setattr("numaserve.workers.bench.programs.spare_bytes", lambda: 4000)
    assert copies_beyond_caches(30) == 17
    assert copies_beyond_caches(5000) == 1
    monkeypatch.setattr("numaserve.workers.bench.programs.spare_bytes", lambda: 400)
    assert copies_beyond_caches(30) == 13
    assert copies_beyond_caches(5000) == 1


def test_a_step_reads_enough_to_be_timed() -> None:
    assert [copies_in_step(mib << 20) for mib in (1, 3, 8, 9)] == [8, 3, 1, 1]


def test_copies_of_a_matrix_have_its_bytes_in_memory_of_their_own() -> None:
    matrix = random_matrix(Team([-1]), 64, 96, BF16)
    copies = same_matrices(matrix, 2)
    assert all(bytes(each.buffer()) == bytes(matrix.buffer()) != bytes(matrix.nbytes) for each in copies)
    assert len({each.address for each in (matrix, *copies)}) == 3
