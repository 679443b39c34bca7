"""The sweep of how much of a product is done at a time."""

import itertools

import pytest
from numaserve.kernels import Program, Team
from numaserve.workers.bench import sweep
from numaserve.workers.bench.kernels import QUICK, Sizes, sweep_cases
from numaserve.workers.bench.meter import Meter
from numaserve.workers.bench.programs import BF16, Spent
from numaserve.workers.bench.rows import Effort, Limits, Row
from numaserve.workers.bench.sweep import Blocking, Product, bench_sweep
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.protocol import Ceilings

TINY = Product("tiny", 64, 96)
VALUES = {"slab_tiles": (8, 16), "block_tiles": (4, 5)}


@pytest.fixture(autouse=True)
def fixed_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = Ceilings("any", 1, 1e9, {"bf16": 1e9})
    monkeypatch.setattr(Meter, "limits", lambda *_: Limits(ceilings, ceilings.flops_s))


def rows(effort: Effort) -> list[Row]:
    meter = Meter(Team([-1]))
    return list(bench_sweep(meter, effort, product=TINY, format=BF16, m_values=(3, 40), values=lambda _: VALUES))


def changed_options(row: Row) -> dict[str, str | int]:
    return {option: row.what[option] for option in VALUES}


def test_every_option_is_changed_alone_and_the_best_together() -> None:
    for _, group in itertools.groupby(rows(Effort(seconds=0, least=1)), key=lambda row: row.what["M"]):
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
    # 5 tiles of a block are twice as fast as any other number of them, whatever else there is.
    def spent(program: Program, *_: object) -> list[Spent]:
        return [Spent(1.0 if program.blocking[2] == 5 else 2.0, 0, 0)]

    monkeypatch.setattr(sweep, "spent_in_step", spent)
    *_, best = rows(Effort(seconds=0, least=2))
    assert best.what["block_tiles"] == 5
    assert best.figures["of_chosen_time"] == 0.5


def test_a_program_keeps_its_blocking() -> None:
    program, _ = sweep._program(Team([-1]), TINY, BF16, 1)
    before = program.blocking
    list(
        sweep._by_turns(
            program,
            1,
            [Blocking(2, 8, 4, 2, 36, 4, 0, 256, 0), Blocking(4, 16, 8, 4, 16, 8, 1, 32, 2)],
            Effort(seconds=0, least=1),
        )
    )
    assert program.blocking == before


def test_few_rows_have_more_to_choose() -> None:
    assert [[*sweep.values_for(m)] for m in (1, 16, 64, 65)] == [
        [],
        [*sweep.SIZES, *sweep.SIZES_OF_FEW],
        [*sweep.SIZES, *sweep.SIZES_OF_FEW],
        [*sweep.SIZES],
    ]


def test_rows_without_a_choice_are_left_out() -> None:
    found = bench_sweep(
        Meter(Team([-1])),
        Effort(seconds=0, least=1),
        product=TINY,
        format=BF16,
        m_values=(1, 16),
        values=lambda m: VALUES if m > 1 else {},
    )
    assert {row.what["M"] for row in found} == {16}


def test_what_is_swept_has_a_name() -> None:
    names = [case.name for case in sweep_cases(["int8"], Sizes())]
    assert names == [f"sweep int8 {product.name}" for product in sweep.PRODUCTS]
    with pytest.raises(OperatorError, match="--format int3: expected bf16, int8, "):
        sweep_cases(["int3"], QUICK)
