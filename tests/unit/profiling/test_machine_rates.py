from dataclasses import replace

import pytest
from numaserve.server.profiling.figures import RankFigures
from numaserve.server.profiling.machine import Machine, rates_between
from numaserve.server.profiling.machine_view import WIDTH, machine_view
from numaserve.workers.protocol import OperationProfile
from rich.console import Console

from tests.support.api_fakes import OVERVIEW


def machine(*, generated: int, prompts: int, steps: int, ns: int) -> Machine:
    operation = OperationProfile("attention", "bf16", steps, ns // 2, ns // 10, 0, 4 * ns, 0)
    costs = [RankFigures(0, steps, steps, ns, [operation])]
    now = replace(OVERVIEW, generation_tokens=generated, prompt_tokens=prompts, steps=steps)
    return Machine("1.2.3", "tiny", now, costs)


def text_of(view: object, width: int = WIDTH) -> str:
    console = Console(width=width, record=True, file=None)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


def test_rates_are_differences_over_time() -> None:
    before = machine(generated=10, prompts=100, steps=5, ns=1_000_000)
    rates = rates_between(before, machine(generated=30, prompts=100, steps=9, ns=9_000_000), 2.0)
    assert (rates.output_tokens_s, rates.prompt_tokens_s, rates.steps_s) == (10.0, 0.0, 2.0)
    (rank,) = rates.ranks
    assert (rank.steps, rank.native_ns) == (4, 8_000_000)


def test_a_server_that_was_started_again_has_no_rates_of_before() -> None:
    before = machine(generated=1000, prompts=100, steps=50, ns=9_000_000)
    rates = rates_between(before, machine(generated=1, prompts=1, steps=1, ns=100), 2.0)
    assert (rates.output_tokens_s, rates.prompt_tokens_s, rates.steps_s, rates.ranks) == (0.0, 0.0, 0.0, [])


def test_a_view_shows_what_a_step_costs_and_fits_a_terminal() -> None:
    before = machine(generated=10, prompts=100, steps=5, ns=1_000_000)
    after = machine(generated=30, prompts=100, steps=9, ns=9_000_000)
    text = text_of(machine_view("http://127.0.0.1:8000", after, rates_between(before, after, 2.0)))
    assert "10.0 generated" in text
    assert "2.00 ms each" in text or "2.0 ms each" in text
    assert "attention" in text
    assert "1.000" in text  # ms of a step
    assert "50%" in text
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize(("width", "left_out"), [(WIDTH - 1, ["resident"]), (40, ["resident", "cores"])])
def test_a_narrow_terminal_shows_fewer_figures_and_cuts_none_off(width: int, left_out: list[str]) -> None:
    before = machine(generated=10, prompts=100, steps=5, ns=1_000_000)
    after = machine(generated=30, prompts=100, steps=9, ns=9_000_000)
    text = text_of(machine_view("http://127.0.0.1:8000", after, rates_between(before, after, 2.0), width), width)
    assert "…" not in text
    assert "misplaced" in text
    assert not any(name in text for name in left_out)


def test_the_first_view_has_totals_in_place_of_rates() -> None:
    text = text_of(machine_view("http://127.0.0.1:8000", machine(generated=10, prompts=1, steps=1, ns=10), None))
    assert "10 generated" in text
    assert "3 of 8 run, 1 wait, the first since 0.5 s" in text
