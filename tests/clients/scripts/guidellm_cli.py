"""guidellm: short benchmarks, in each of which every request must succeed."""

import json

from checks import MODEL, SCRATCH, TOKENIZER, URL, check, command

REQUESTS = 6


def benchmark(name: str, route: str, *, stream: bool, turns: int = 1) -> None:
    report = SCRATCH / f"{name}.json"
    backend = {"kind": "openai_http", "target": URL, "model": MODEL, "request_format": route, "stream": stream}
    data = {"kind": "synthetic_text", "prompt_tokens": 24, "output_tokens": 8, "turns": turns}
    command(
        "guidellm",
        "run",
        *("--backend", json.dumps(backend)),
        *("--data", json.dumps(data)),
        *("--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
        *("--profile", "kind=concurrent,streams=2"),
        *("--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--output", f"kind=json,path={report}"),
        "--disable-console-interactive",
    )
    (run,) = json.loads(report.read_text())["benchmarks"]
    totals = run["metrics"]["request_totals"]
    assert totals["successful"] >= REQUESTS, totals
    assert totals["errored"] == 0, totals


@check("chat stream")
def chat_stream() -> None:
    benchmark("chat-stream", "/v1/chat/completions", stream=True)


@check("chat")
def chat() -> None:
    benchmark("chat", "/v1/chat/completions", stream=False)


@check("second turn")
def second_turn() -> None:
    benchmark("turns", "/v1/chat/completions", stream=True, turns=2)


@check("completion stream")
def completion_stream() -> None:
    benchmark("completion-stream", "/v1/completions", stream=True)


@check("completion")
def completion() -> None:
    benchmark("completion", "/v1/completions", stream=False)
