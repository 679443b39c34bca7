"""The sweep of how much of a product is done at a time."""

import itertools
from collections.abc import Mapping

import pytest
from numaserve.kernels import Program, Team
from numaserve.workers.bench import sweep
from numaserve.workers.bench.kernels import QUICK, Sizes, sweep_cases
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.programs import BF16, Spent, built
from numaserve.workers.bench.rows import Effort, Limits, Row, Times
from numaserve.workers.bench.sweep import Choice, Findings, Mlp, bench_sweep
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import Ceilings
from numaserve.workers.program.ops.base import Operation
from numaserve.workers.program.ops.products import Linear

TINY = Mlp("tiny", 96, 64)
VALUES = {"slab_tiles": (8, 16), "block_tiles": (4, 5)}


@pytest.fixture(autouse=True)
def fixed_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = Ceilings("any", 1, 1e9, {"bf16": 1e9})
    monkeypatch.setattr(Meter, "limits", lambda *_: Limits(ceilings, ceilings.flops_s))


def rows(effort: Effort) -> list[Row]:
    meter = Meter(Team([-1]))
    return list(bench_sweep(meter, effort, mlp=TINY, format=BF16, m_values=(3, 40), values=lambda _: VALUES))


def changed_options(row: Row) -> dict[str, str | int]:
    return {option: row.what[option] for option in VALUES}


def test_every_option_is_changed_alone_and_the_best_together() -> None:
    groups = itertools.groupby(rows(Effort(seconds=0, least=1)), key=lambda row: (row.what["M"], row.what["product"]))
    measured = {key: list(group) for key, group in groups}
    assert list(measured) == [(m, f"tiny {name}") for m in (3, 40) for name in ("gate_up", "down")]
    for group in measured.values():
        first, *changed, best = group
        chosen = changed_options(first)
        assert (first.what["change"], best.what["change"]) == ("", "best of all")
        expected = {
            f"{option} {value}": chosen | {option: value}
            for option, values in VALUES.items()
            for value in values
            if value != chosen[option]
        }
        assert {str(row.what["change"]): changed_options(row) for row in changed} == expected
        assert all(float(row.figures["of_ceiling"] or 0) > 0 for row in (first, *changed, best))


def test_the_fastest_value_of_each_option_is_in_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    # 5 tiles of a block are twice as fast as any other number of them, whatever else there is. For down they are not.
    def spent(program: Program, *_: object) -> list[Spent]:
        return [Spent(1.0 if program.blocking["block_tiles"] == 5 else 2.0, 0, 0), Spent(2.0, 0, 0)]

    monkeypatch.setattr(sweep, "spent_in_step", spent)
    found = [row for row in rows(Effort(seconds=0, least=2)) if row.what["M"] == 40]
    of_gate_up, of_down = (row for row in found if row.what["change"] == "best of all")
    assert of_gate_up.what["block_tiles"] == 5
    assert of_gate_up.figures["of_chosen_time"] == 0.5
    assert of_down.what["block_tiles"] == found[0].what["block_tiles"]


def test_a_program_keeps_its_blocking() -> None:
    program, _ = sweep._program(Team([-1]), TINY, BF16, 1)
    before = program.blocking
    changed = [before | {"slab_tiles": 8}, before | {"block_tiles": 4, "streamed_bytes": 1}]
    assert len(list(sweep._by_turns(program, 1, changed, Effort(seconds=0, least=1)))) == 2
    assert program.blocking == before


@pytest.mark.parametrize(("isa", "of_many"), [("avx512", []), ("amx", [*sweep.SIZES_OF_TILE_REGISTERS])])
def test_few_rows_and_tile_registers_have_more_to_choose(
    monkeypatch: pytest.MonkeyPatch, isa: str, of_many: list[str]
) -> None:
    monkeypatch.setattr(sweep, "isa", lambda: isa)
    assert [[*sweep.values_for(m)] for m in (1, 16, 64, 65)] == [
        [],
        [*sweep.SIZES, *sweep.SIZES_OF_FEW],
        [*sweep.SIZES, *sweep.SIZES_OF_FEW],
        [*sweep.SIZES, *of_many],
    ]


def test_products_of_a_sweep_are_those_that_streams_and_copies_concern() -> None:
    # An option of a product that neither writes bf16 nor copies activations would compare equal code.
    recorded: list[Operation] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "built", lambda b, team: recorded.extend(b.fused()) or built(b, team))
        sweep._program(Team([-1]), TINY, BF16, 40)
    gate_up, down = (each for each in recorded if isinstance(each, Linear) and each.name in sweep.NODES)
    assert (gate_up.reads_alone, gate_up.activation) == (False, "silu")
    assert down.reads_alone


def choices(option: str, of_chosen: Mapping[int, float]) -> list[Choice]:
    """The chosen blocking, whose sizes are 8, and other values of one option with their times."""
    chosen, times = {"slab_tiles": 8, "block_tiles": 8}, Times(1.0, 1.0)
    return [
        Choice("", "", chosen, times, 1.0),
        *(Choice(option, f"{option} {value}", chosen | {option: value}, times, of) for value, of in of_chosen.items()),
        Choice("", "best of all", chosen | {option: 99}, times, 0.1),
    ]


def test_a_value_is_found_that_gains_over_all_products_together() -> None:
    findings = Findings()
    # 4 gains most of all in one product, and loses in the other.
    findings.add(choices("block_tiles", {4: 0.5, 6: 0.8}))
    findings.add(choices("block_tiles", {4: 1.6, 6: 0.9}))
    findings.add(choices("slab_tiles", {16: 0.985, 32: 1.1}))  # too little to be no luck
    assert findings.best() == {"slab_tiles": 8, "block_tiles": 6}
    assert findings.summary() == "block_tiles 6 instead of 8"
    nothing = Findings()
    nothing.add(choices("slab_tiles", {16: 0.985}))
    assert (nothing.best(), nothing.summary()) == (nothing.chosen, "the chosen sizes, because no other gains 2%")


def test_rows_without_a_choice_are_left_out() -> None:
    found = bench_sweep(
        Meter(Team([-1])),
        Effort(seconds=0, least=1),
        mlp=TINY,
        format=BF16,
        m_values=(1, 16),
        values=lambda m: VALUES if m > 1 else {},
    )
    assert {row.what["M"] for row in found} == {16}


def test_what_is_swept_has_a_name() -> None:
    names = [case.name for case in sweep_cases(["int8"], Sizes())]
    assert names == [f"sweep int8 {mlp.name}" for mlp in sweep.MLPS]
    with pytest.raises(OperatorError, match="--format int3: expected bf16, int8, "):
        sweep_cases(["int3"], QUICK)
