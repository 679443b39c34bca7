"""lm-eval: small tasks of its own kinds, generated and chosen by log-probabilities, with text and with token ids."""

import json
import os

from checks import MODEL, SCRATCH, TOKENIZER, URL, check, command

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(SCRATCH / "hub")}

QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Paris", "Rome"], "gold": 0},
    {"question": "The capital of Italy is", "choices": ["Paris", "Rome"], "gold": 1},
    {"question": "Two and two is", "choices": ["four", "nine"], "gold": 0},
]
DATA = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(SCRATCH / "questions.jsonl")}}}
COMMON = {**DATA, "test_split": "test", "doc_to_text": "{{question}}"}
TASKS = {
    "generated": {
        "output_type": "generate_until",
        "doc_to_target": "{{choices[gold]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 6, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
    "chosen": {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc"}],
    },
}

(SCRATCH / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))
for task, settings in TASKS.items():
    # JSON is YAML.
    (SCRATCH / f"{task}.yaml").write_text(json.dumps({"task": task, **COMMON, **settings}))


def evaluate(name: str, *tasks: str, model: str, route: str, **arguments: object) -> dict[str, dict[str, float]]:
    """Metrics by task, over all questions."""
    arguments = {"model": MODEL, "base_url": f"{URL}/v1/{route}", "max_retries": 1, "num_concurrent": 2, **arguments}
    command(
        "lm-eval",
        "run",
        *("--model", model, "--model_args", json.dumps(arguments)),
        *("--tasks", ",".join(tasks), "--include_path", str(SCRATCH)),
        *("--output_path", str(SCRATCH / name / "result.json")),
        *(["--apply_chat_template"] if route.startswith("chat") else []),
    )
    (report,) = (SCRATCH / name).glob("*.json")
    result = json.loads(report.read_text())
    assert all(result["n-samples"][task]["effective"] == len(QUESTIONS) for task in tasks), result["n-samples"]
    return result["results"]


@check("completion")
def completion() -> None:
    evaluate("text", "generated", model="local-completions", route="completions", tokenizer_backend=None)


@check("log-probabilities")
def log_probabilities() -> None:
    # Without a `tokenizer_backend` it asks the server for its tokenizer first, and sends token ids.
    results = evaluate(
        "ids", "generated", "chosen", model="local-completions", route="completions", tokenizer=TOKENIZER
    )
    assert results["chosen"]["acc,none"] == 1, results


@check("chat")
def chat() -> None:
    evaluate("chat", "generated", model="local-chat-completions", route="chat/completions")
