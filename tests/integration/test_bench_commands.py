"""`numaserve bench` against the whole server over fake workers."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from fake_worker import VOCAB
from harness import Options, Server, run, serving
from numaserve.server.cli.main import main
from numaserve.server.loadtest.options import DatasetName, Traffic, Workload
from numaserve.server.loadtest.report.stats import Summary
from numaserve.server.loadtest.session import Output, bench_compare, bench_serve
from numaserve.server.speculation.server_drafters import ServerDrafters
from rich.console import Console

WORKLOAD = Workload(num_prompts=12, random_input_len=40, random_output_len=9)
TRAFFIC = Traffic(vocab_size=VOCAB, warmup_requests=2)


def output(path: Path) -> Output:
    return Output(Console(file=io.StringIO(), width=120), path / "out.jsonl", details=True)


def shown(where: Output) -> str:
    assert isinstance(where.console.file, io.StringIO)
    return where.console.file.getvalue()


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "out.jsonl").read_text().splitlines()]


def url_of(server: Server) -> str:
    return str(server.client.base_url)


def serve(path: Path, workload: Workload, traffic: Traffic, *rates: float) -> tuple[list[Summary], float]:
    """Summaries of `bench serve`, and the prompt tokens that the server counted."""

    async def scenario() -> tuple[list[Summary], float]:
        async with serving(Options()) as server:
            found = await bench_serve(url_of(server), workload, traffic, rates=rates, limits={}, output=output(path))
            return found, server.metric("prompt_tokens_total")

    return run(scenario())


def test_every_request_is_served_with_the_lengths_asked_for(tmp_path: Path) -> None:
    (summary,), counted = serve(tmp_path, WORKLOAD, TRAFFIC)
    (record,) = records(tmp_path)
    assert (summary.completed, summary.failed) == (12, 0)
    assert (summary.input_tokens, summary.output_tokens, summary.cached_tokens) == (12 * 40, 12 * 9, 0)
    assert summary.shorter == 0
    assert counted == 12 * 40 + 2 * 40 + 8  # with the warm-up and the question what the server understands
    assert (record["model_id"], record["notes"]) == ("fake", [])
    assert record["output_lens"] == [9] * 12
    assert [len(gaps) for gaps in record["itls"]] == [8] * 12


@pytest.mark.parametrize("name", [DatasetName.RANDOM, DatasetName.SHARED_PREFIX])
def test_texts_and_shared_prefixes_have_exact_lengths_too(tmp_path: Path, name: DatasetName) -> None:
    workload = Workload(
        name,
        num_prompts=6,
        random_input_len=40,
        random_output_len=4,
        gsp_num_groups=2,
        gsp_prompts_per_group=3,
        gsp_system_prompt_len=32,
        gsp_question_len=8,
        gsp_output_len=4,
    )
    (summary,), _ = serve(tmp_path, workload, TRAFFIC)
    assert (summary.completed, summary.input_tokens, summary.output_tokens) == (6, 240, 24)


def test_a_question_behind_a_system_prompt_finds_it_in_the_cache(tmp_path: Path) -> None:
    workload = Workload(
        DatasetName.SHARED_PREFIX,
        gsp_num_groups=2,
        gsp_prompts_per_group=4,
        gsp_system_prompt_len=64,
        gsp_question_len=8,
        gsp_output_len=2,
    )
    (summary,), _ = serve(tmp_path, workload, Traffic(vocab_size=VOCAB, max_concurrency=1))
    assert summary.cached_tokens == 2 * 3 * 64  # all but the first of each group


def test_a_sweep_finds_nothing_of_its_own_in_the_cache(tmp_path: Path) -> None:
    summaries, _ = serve(tmp_path, WORKLOAD, TRAFFIC, 400.0, 800.0, float("inf"))
    assert [summary.completed for summary in summaries] == [12, 12, 12]
    assert [summary.cached_tokens for summary in summaries] == [0, 0, 0]
    assert [record["request_rate"] for record in records(tmp_path)] == [400.0, 800.0, "inf"]
    assert [record["seed"] for record in records(tmp_path)] == [1, 2, 3]


def test_the_cache_is_flushed_before_each_run_where_that_is_asked_for(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        async with serving(Options()) as server:
            cached = []
            for flush in (False, False, True):
                traffic = Traffic(vocab_size=VOCAB, flush_cache=flush)
                found = await bench_serve(
                    url_of(server), WORKLOAD, traffic, rates=[], limits={}, output=output(tmp_path)
                )
                cached.append(found[0].cached_tokens)
            return cached

    assert run(scenario()) == [0, 12 * 32, 0]


def test_tokens_a_step_and_right_draft_tokens_are_told_of_each_run(tmp_path: Path) -> None:
    where = output(tmp_path)

    async def scenario() -> float:
        drafting = Options(drafters=ServerDrafters(("suffix",)), counted_drafters=("suffix",))
        async with serving(drafting) as server:
            for _ in range(2):  # the second time its answers have been given before
                await bench_serve(url_of(server), WORKLOAD, TRAFFIC, rates=[], limits={}, output=where)
            return server.metric("draft_tokens_total", drafter="suffix", outcome="accepted")

    counted = run(scenario())
    first, second = records(tmp_path)
    assert first["accept_length"] == 1.0
    assert 12 < second["spec_decode_accepted_tokens"] <= counted  # those of the warm-up count in no run
    assert second["accept_length"] == 12 * 9 / (12 * 9 - second["spec_decode_accepted_tokens"])
    assert "tokens per step" in shown(where)


def test_servers_in_comparison_get_the_same_work_in_turn(tmp_path: Path) -> None:
    where = output(tmp_path)

    async def scenario() -> list[Summary]:
        async with serving(Options()) as first, serving(Options(faults=("--step-ms", "5"))) as second:
            urls = [url_of(first), url_of(second)]
            return await bench_compare(urls, WORKLOAD, TRAFFIC, rate=None, rounds=2, pause_s=0.0, output=where)

    summaries = run(scenario())
    *runs, comparison = records(tmp_path)
    assert [summary.completed for summary in summaries] == [12] * 4
    assert [summary.cached_tokens for summary in summaries] == [0] * 4
    assert [record["seed"] for record in runs] == [1, 1, 2, 2]
    assert [record["base_url"] for record in runs] == comparison["compare"] * 2
    assert {ratio["figure"] for ratio in comparison["ratios"]} >= {"TTFT median (ms)", "output tokens/s"}
    assert "B / A" in shown(where)


def command(server: Server, *arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "serve", "--base-url", url_of(server), "--vocab-size", str(VOCAB), *arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_failed_requests_end_the_command_with_an_error_and_the_first_reason(capfd: pytest.CaptureFixture[str]) -> None:
    """The context holds 2048 tokens; lengths reach up to 4000."""

    async def scenario() -> int:
        lengths = ("--random-input-len", "4000", "--random-range-ratio", "0", "--random-output-len", "2")
        async with serving(Options()) as server:
            return await asyncio.to_thread(
                command, server, "--num-prompts", "20", "--warmup-requests", "0", *lengths, "--seed", "3"
            )

    assert run(scenario()) == 1
    out, err = capfd.readouterr()
    assert "of 20 requests failed. First error: HTTP 400: " in err
    assert "time to first token" in out


def test_requests_that_all_succeed_end_the_command_well(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async def scenario() -> int:
        small = ("--num-prompts", "5", "--random-input-len", "9", "--random-output-len", "3")
        rest = ("--goodput", "ttft:60000", "tpot:60000", "--plot", str(tmp_path / "plot.svg"))
        async with serving(Options()) as server:
            return await asyncio.to_thread(command, server, *small, *rest)

    assert run(scenario()) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "goodput (requests/s)" in out
    assert (tmp_path / "plot.svg").exists()
