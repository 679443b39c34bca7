"""The distances of llama.cpp and of numaserve from the same reference."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np

from tests.support.parity import Distance, Scores, Texts

SCRIPT = Path(__file__).with_name("llama_cpp_scores.py")


def print_heads(*heads: str) -> None:
    """Print the head of a table."""
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")


def cells(scores: Scores, reference: Scores) -> str:
    """Two cells: the mean difference of log-probabilities, and the share of positions with the same top token."""
    distance = Distance.between(scores, reference)
    return f"{distance.mean_delta:.4f} | {1 - distance.disagreements / distance.positions:.1%}"


def further(ours: Scores, theirs: Scores, reference: Scores) -> tuple[float, float]:
    """Return the relative excess of the mean distance of `ours` over that of `theirs`, and its standard error."""
    distances, others = (np.abs(each.logprobs - reference.logprobs) for each in (ours, theirs))
    more = (distances - others) / others.mean()
    return float(more.mean()), float(more.std() / len(more) ** 0.5)


def llama_scores(python: Path, path: Path, texts: Texts) -> Scores:
    """Score texts by llama.cpp on a file. `python` is the interpreter of its environment."""
    tokens, scores = path.with_name("tokens.json"), path.with_name("scores.npz")
    tokens.write_text(json.dumps(texts))
    run_llama(python, "score", str(path), str(tokens), str(scores))
    with np.load(scores) as found:
        return Scores(found["logprobs"], found["top"])


def run_llama(python: Path, *arguments: str) -> None:
    """Run the script in llama.cpp's environment. Raises `SystemExit` where it fails."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([python, SCRIPT, *arguments], env=environment, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr.decode(errors="replace")[-2000:])
