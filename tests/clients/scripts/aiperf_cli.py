"""aiperf: short benchmarks, in each of which every request must succeed."""

import json

from checks import MODEL, SCRATCH, TOKENIZER, URL, check, command

REQUESTS = 6


def benchmark(name: str, kind: str, *options: str) -> None:
    folder = SCRATCH / name
    command(
        "aiperf",
        "profile",
        *("--model", MODEL, "--url", URL, "--endpoint-type", kind, "--tokenizer", TOKENIZER),
        *("--isl", "24", "--osl", "8", "--concurrency", "2", "--request-count", str(REQUESTS)),
        *("--artifact-dir", str(folder), "--ui-type", "none", "--no-gpu-telemetry", "--extra-inputs", "temperature:0"),
        *options,
    )
    report = json.loads((folder / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] >= REQUESTS, report["request_count"]
    assert not report.get("error_request_count"), report["error_request_count"]


@check("chat stream")
def chat_stream() -> None:
    benchmark("chat-stream", "chat", "--streaming")


@check("chat")
def chat() -> None:
    benchmark("chat", "chat", "--use-server-token-count")


@check("second turn")
def second_turn() -> None:
    benchmark("turns", "chat", "--streaming", "--session-turns-mean", "2")


@check("completion stream")
def completion_stream() -> None:
    benchmark("completion-stream", "completions", "--streaming")


@check("completion")
def completion() -> None:
    benchmark("completion", "completions")
