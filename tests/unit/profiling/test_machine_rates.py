from dataclasses import replace

import msgspec
import pytest
from numaserve.server.engine.overview import WorkerState
from numaserve.server.metrics.kv_disk_figures import DiskFigures, DiskRecords
from numaserve.server.profiling.figures import RankFigures
from numaserve.server.profiling.machine import Machine, rates_between
from numaserve.server.profiling.machine_view import WIDTH, machine_view
from numaserve.workers.interface.protocol import OperationProfile
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
    assert "10.0 output" in text
    assert "2.00 ms per step" in text or "2.0 ms per step" in text
    assert "attention" in text
    assert "1.000" in text  # ms of a step
    assert "50%" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_the_disk_tier_has_a_line_if_there_is_one() -> None:
    def line(disk: DiskFigures | None) -> str:
        now = replace(OVERVIEW, disk=disk)
        answer = msgspec.json.decode(msgspec.json.encode(Machine("1", "tiny", now, [])), type=Machine)
        return "".join(each for each in text_of(machine_view("", answer, None)).splitlines() if "Disk" in each)

    pages = DiskRecords(1200, 2000, 3 << 30)
    figures = DiskFigures(
        "open", limit_bytes=8 << 30, read_bytes_per_s=1.25e9, records={"pages": pages}, hit_tokens=38_400
    )
    assert line(figures) == "Disk      open: 1,200 pages, 3.0 of 8.0 GiB; 38,400 tokens read, 1.25 GB/s"
    assert "off until the next start: full: no space" in line(DiskFigures("off", off_reason="full: no space"))
    assert not line(None)


@pytest.mark.parametrize(("width", "left_out"), [(WIDTH - 1, ["resident"]), (40, ["resident", "cores"])])
def test_a_narrow_terminal_shows_fewer_figures_and_cuts_none_off(width: int, left_out: list[str]) -> None:
    before = machine(generated=10, prompts=100, steps=5, ns=1_000_000)
    after = machine(generated=30, prompts=100, steps=9, ns=9_000_000)
    text = text_of(machine_view("http://127.0.0.1:8000", after, rates_between(before, after, 2.0), width), width)
    assert "…" not in text
    assert "misplaced" in text
    assert not any(name in text for name in left_out)


def large_machine(ranks: int, times: int) -> Machine:
    """A server whose figures are as large as those of any, `times` as much of what is counted."""
    names = [(f"operation {at}", "int4" if at % 2 else "bf16") for at in range(12)]
    costs = [
        OperationProfile(name, format, times, 10**10 * times // (at + 1), times, 0, 10**13 * times, 0)
        for at, (name, format) in enumerate(names)
    ]
    now = replace(
        OVERVIEW,
        generation_tokens=99_999 * times,
        prompt_tokens=999_999 * times,
        steps=9_999 * times,
        running=4096,
        max_running=4096,
        waiting=65536,
        longest_wait_s=12345.6,
        pages_free=1_234_567,
        pages_cached=1_234_567,
        pages_active=1_234_567,
        workers=[
            WorkerState(rank, rank, 128, "amx", 900 << 30, 900 << 30, 1900 << 30, misplaced_pages=123_456_789)
            for rank in range(ranks)
        ],
    )
    ranks_costs = [RankFigures(rank, 9_999 * times, times, 4 * 10**10 * times, costs) for rank in range(ranks)]
    return Machine("0.1.0.dev1+g0123abc", "a-model-with-a-long-name-" * 4, now, ranks_costs)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 20])
@pytest.mark.parametrize("has_rates", [True, False])
def test_a_view_fits_80_columns_and_24_lines_whatever_the_figures(ranks: int, has_rates: bool) -> None:
    before, after = large_machine(ranks, 1), large_machine(ranks, 2)
    rates = rates_between(before, after, 1.0) if has_rates else None
    head, *lines = text_of(machine_view("https://a-host.example:8443", after, rates, 80, 24), 80).splitlines()
    assert len(lines) + 1 <= 24 and max(len(line.rstrip()) for line in (head, *lines)) <= 80
    assert "…" not in "".join(lines), "a name is cut off, a number never is"
    assert "serving" in head
    assert "123456789" in "".join(lines)
    assert any("operation 0" in line for line in lines) == (has_rates and ranks <= 8)
    assert any(line.strip().startswith("and ") for line in lines) == (ranks == 20)


def test_a_view_names_the_ranks_that_lack_processor_time() -> None:
    now = machine(generated=10, prompts=1, steps=1, ns=10)
    url = "http://127.0.0.1:8000"
    assert "Starved" not in text_of(machine_view(url, now, None))
    starved = [replace(worker, starved=worker.rank == 1) for worker in now.now.workers]
    now = msgspec.structs.replace(now, now=replace(now.now, workers=starved))
    text = text_of(machine_view(url, now, None))
    assert "Starved   rank 1: other processes or a quota take the CPU time" in text


def test_the_first_view_has_totals_in_place_of_rates() -> None:
    text = text_of(machine_view("http://127.0.0.1:8000", machine(generated=10, prompts=1, steps=1, ns=10), None))
    assert "10 output" in text
    assert "3 of 8 running, 1 waiting, the longest for 0.5 s" in text
