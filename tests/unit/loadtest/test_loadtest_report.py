"""Tables, JSON lines and plots."""

import importlib.util
import io
import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from numaserve.server.loadtest.options import Traffic, Workload
from numaserve.server.loadtest.report.compare import ratio_view, ratios
from numaserve.server.loadtest.report.plot import check_plot, write_plot
from numaserve.server.loadtest.report.report import (
    JsonLines,
    Setting,
    json_details,
    json_record,
    number,
    summary_view,
    sweep_table,
)
from numaserve.server.loadtest.report.speculation import Speculation
from numaserve.server.loadtest.report.stats import Summary, summarize
from numaserve.server.loadtest.workload.requests import Outcome
from numaserve.workers.interface.errors import OperatorError
from rich.console import Console, RenderableType

OUTCOMES = [
    Outcome(100, 3, 4, 64, ttft_s=0.5, e2e_s=0.75, itls_s=[0.125, 0.125], with_usage=True),
    Outcome(100, 1, 1, 0, ttft_s=0.25, e2e_s=0.25, with_usage=True),
    Outcome(100, error="HTTP 503: busy"),
]
SETTING = Setting("http://h:1", "m", Workload(), Traffic(max_concurrency=4), math.inf, 3)


def summary(scale: float = 1.0) -> Summary:
    return summarize(OUTCOMES, 2.0 * scale, {"ttft": 300.0})


def shown(view: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=150)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.replace("┃", "│").split("│")] for line in text.splitlines()]
    return {row[1]: row[2:-1] for row in cells if len(row) > 2}


def test_the_table_has_counts_and_every_latency() -> None:
    text = shown(summary_view(SETTING, summary()))
    latencies = rows(text)
    assert "m at http://h:1: request rate inf, max concurrency 4" in text
    assert latencies["time to first token (TTFT)"] == ["375.0", "375.0", "487.5", "497.5"]
    assert latencies["time per output token (TPOT)"] == ["125.0"] * 4
    assert "200 (64 cached)" in text
    assert re.search(r"outputs shorter than requested +1\b", text)
    assert "goodput (requests/s)" in text


def test_a_latency_without_samples_is_a_dash() -> None:
    text = shown(summary_view(SETTING, summarize(OUTCOMES[2:], 1.0, {})))
    assert rows(text)["inter-token latency (ITL)"] == ["-"] * 4
    assert "goodput" not in text


def test_a_sweep_has_a_row_for_each_rate() -> None:
    found = rows(shown(sweep_table([0.5, math.inf], [summary(), summary(0.5)])))
    assert found["0.5"][:2] == ["1.00", "2.00"]
    assert found["inf"][:2] == ["2.00", "4.00"]


def test_the_comparison_shows_ratios_with_their_spread() -> None:
    text = shown(ratio_view("http://a", "http://b", ratios([summary(), summary()], [summary(0.5), summary(0.25)])))
    assert "A: http://a\nB: http://b" in text
    assert rows(text)["output tokens/s"] == ["2.00", "6.00", "3.000", "2.000", "4.000"]


def test_a_record_has_the_names_of_other_clients_and_is_strict_json(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "o.jsonl")
    lines.write(json_record(SETTING, summary(), ["a note"]))
    lines.write(json_record(SETTING, summary(), []) | json_details(OUTCOMES))
    written = (tmp_path / "o.jsonl").read_text().splitlines()
    first, second = (json.loads(line, parse_constant=pytest.fail) for line in written)
    assert (first["completed"], first["failed"], first["first_error"]) == (2, 1, "HTTP 503: busy")
    assert (first["request_rate"], first["max_concurrency"], first["seed"]) == ("inf", 4, 3)
    assert (first["mean_ttft_ms"], first["median_itl_ms"], first["request_goodput"]) == (375.0, 125.0, 0.5)
    assert first["total_throughput"] == first["input_throughput"] + first["output_throughput"]
    assert first["notes"] == ["a note"]
    assert "itls" not in first
    assert second["itls"] == [[0.125, 0.125], [], []]
    assert second["errors"] == [None, None, "HTTP 503: busy"]


def test_guesses_are_shown_and_written_where_the_server_tells_of_them() -> None:
    guessed = summarize(OUTCOMES, 2.0, {}, Speculation(generated=3000, accepted=1200, rejected=300))
    text, record = shown(summary_view(SETTING, guessed)), json_record(SETTING, guessed, [])
    assert re.search(r"output tokens per step and sequence +1\.67\b", text)
    assert re.search(r"draft tokens accepted +1,200 of 1,500 \(80%\)", text)
    assert (record["accept_length"], record["spec_decode_acceptance_rate"]) == (pytest.approx(5 / 3), 80.0)
    assert (record["spec_decode_draft_tokens"], record["spec_decode_accepted_tokens"]) == (1500, 1200)
    without = summarize(OUTCOMES, 2.0, {}, Speculation(3000, 0, 0))
    assert re.search(r"draft tokens accepted +0 of 0 *\n", shown(summary_view(SETTING, without)))
    assert json_record(SETTING, without, [])["spec_decode_acceptance_rate"] is None


def test_of_a_server_that_does_not_tell_of_guesses_nothing_is_shown() -> None:
    text, record = shown(summary_view(SETTING, summary())), json_record(SETTING, summary(), [])
    assert "guesses" not in text
    assert "tokens a step" not in text
    assert {record[name] for name in record if name.startswith(("accept", "spec_decode"))} == {None}


def test_a_record_never_has_the_key() -> None:
    setting = Setting("http://h:1", "m", Workload(), Traffic(api_key="secret"), 1.0, 3)
    assert "secret" not in json.dumps(json_record(setting, summary(), []))


def test_a_file_that_cannot_be_written_is_told_beforehand(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot write --output-file"):
        JsonLines(tmp_path / "none" / "o.jsonl")


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.00"), (1.234, "1.23"), (99.94, "99.94"), (123.45, "123.5"), (12345.6, "12,346")]
)
def test_numbers_have_no_digits_that_mean_nothing(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".html", b"<!DOCTYPE html>")])
def test_a_plot_has_the_format_of_its_suffix(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"plot{suffix}"
    check_plot(path)
    write_plot(path, "m, random-ids", [1.0, math.inf], [summary(), summary(0.5)])
    assert path.read_bytes().startswith(magic)


def test_a_drawing_in_html_is_whole(tmp_path: Path) -> None:
    write_plot(tmp_path / "plot.html", "m", [2.0], [summary()])
    page = (tmp_path / "plot.html").read_text()
    svg = page[page.index("<svg") : page.index("</svg>") + len("</svg>")]
    assert len(list(ET.fromstring(svg).iter())) > 100  # noqa: S314  (our own)


def test_runs_without_a_completed_request_are_left_out_of_a_plot(tmp_path: Path) -> None:
    write_plot(tmp_path / "plot.svg", "m", [2.0], [summarize(OUTCOMES[2:], 1.0, {})])
    assert (tmp_path / "plot.svg").exists()


@pytest.mark.parametrize(
    ("name", "message"), [("x.pdf", r"\.png, \.svg, \.html"), ("none/x.png", "the folder .* does not exist")]
)
def test_a_plot_that_could_not_be_written_is_told_beforehand(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        check_plot(tmp_path / name)


def test_a_missing_matplotlib_is_told_with_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(OperatorError, match=r"run `pip install matplotlib`"):
        check_plot(tmp_path / "x.png")
