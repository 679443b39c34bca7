"""``python -m tests.engines [KIND ...]``: the distance from fp32 of llama.cpp and of numaserve on the same GGUF files.

The files are the demo model's weights in the kinds that llama.cpp's own quantizer makes of them, by default those of
docs/accuracy.md. The reference is transformers in fp32 on the weights that a file stands for. pip builds llama.cpp
from llama-cpp-python's source distribution, for the processor at hand, in an environment of its own in `build/engines`;
that takes some minutes once. Prints a table; the exit status is 1 where numaserve as it starts by default is further
away than llama.cpp by more than two standard errors: roundings that are alike in size differ by some percent.
"""

import functools
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import gguf
import numpy as np
import torch
import transformers as hf
from numaserve.server.tokenizer import load_tokenizer
from numaserve.workers.interface.settings import AS_PUBLISHED, WeightFormats
from numaserve.workers.models.load import load_model_config

from tests.clients.environments import python_with
from tests.support.demo import ALICE, demo_model
from tests.support.parity import CONTEXT, Distance, Scores, Texts, served_scores, transformers_scores

FOLDER = Path(__file__).resolve().parents[2] / "build" / "engines"
LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
SCRIPT = Path(__file__).with_name("llama_cpp_scores.py")
PACKAGES = {"llama-cpp-python": "0.3.36"}
KINDS = ("Q4_0", "Q4_K_M", "Q8_0")


def main(kinds: list[str]) -> int:
    """Compare on all kinds."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    os.environ.setdefault("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF")
    python = python_with(PACKAGES, FOLDER / "llama.cpp")
    further = False
    print("| file | blocks | llama.cpp | top-1 | numaserve | top-1 | bf16 activations | top-1 | numaserve's over it |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in kinds or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            further |= _compare(python, kind, Path(folder))
    return int(further)


def _compare(python: Path, kind: str, folder: Path) -> bool:
    """Print a row; whether numaserve is further away."""
    path = folder / "model.gguf"
    _run(python, "quantize", str(demo_model()), kind, str(path))
    texts = _texts(path)
    reference = transformers_scores(_expanded(path), texts)
    theirs = _llama_scores(python, path, texts)
    ours, by_bf16 = (
        served_scores(path, 1, texts, formats) for formats in (AS_PUBLISHED, WeightFormats(activations="bf16"))
    )
    layouts = sorted({each.layout for each in load_model_config(path).stored.values()})
    further, error = _further(ours, theirs, reference)
    cells = " | ".join(_cells(Distance.between(each, reference)) for each in (theirs, ours, by_bf16))
    print(f"| {kind} | {', '.join(layouts)} | {cells} | {1 + further:.2f} ± {error:.2f} |", flush=True)
    return further > 2 * error


def _further(ours: Scores, theirs: Scores, reference: Scores) -> tuple[float, float]:
    """How much further away `ours` are in the mean, as a part of the distance of `theirs`, and the standard error."""
    distances, others = (np.abs(each.logprobs - reference.logprobs) for each in (ours, theirs))
    further = (distances - others) / others.mean()
    return float(further.mean()), float(further.std() / len(further) ** 0.5)


def _texts(path: Path) -> Texts:
    """Some 3000 tokens of real text, in pieces of the context's length."""
    found = [load_tokenizer(path).encode(text) for text in (ALICE, LICENSE.read_text())]
    return [ids[start : start + CONTEXT] for ids in found for start in range(0, len(ids) - 1, CONTEXT)]


def _expanded(path: Path) -> hf.PreTrainedModel:
    # It would read the file, a long vocabulary above all, for the configuration and again for the weights.
    with mock.patch.object(gguf, "GGUFReader", functools.cache(gguf.GGUFReader)):
        model = hf.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval()


def _llama_scores(python: Path, path: Path, texts: Texts) -> Scores:
    tokens, scores = path.with_name("tokens.json"), path.with_name("scores.npz")
    tokens.write_text(json.dumps(texts))
    _run(python, "score", str(path), str(tokens), str(scores))
    with np.load(scores) as found:
        return Scores(found["logprobs"], found["top"])


def _run(python: Path, *arguments: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([python, SCRIPT, *arguments], env=environment, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr.decode(errors="replace")[-2000:])


def _cells(distance: Distance) -> str:
    return f"{distance.mean_delta:.4f} | {1 - distance.disagreements / distance.positions:.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
