"""``python -m tests.engines [KIND ...]``: the distance from fp32 of llama.cpp and of numaserve on the same GGUF files.

The files are the demo model's weights in the kinds that llama.cpp's own quantizer makes of them, by default those of
docs/accuracy.md. The reference is transformers in fp32 on the weights that a file stands for. Without a KIND there is
also a table of recurrent hybrids (`hybrids.py`), and models that see are converted (`towers.py`). pip builds llama.cpp
from llama-cpp-python's source distribution, for the processor at hand, in an environment of its own in `build/engines`;
that takes some minutes once. The exit status is 1 where numaserve as it starts by default is further away than
llama.cpp by more than two standard errors, or on a hybrid than transformers with numaserve's roundings by 5 % too:
roundings that are alike in size differ by some percent. It is 1 too where features of a converted model differ from
those of its folder.
"""

import functools
import logging
import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

import gguf
import torch
import transformers as hf
from numaserve.server.tokenizer import load_tokenizer
from numaserve.workers.interface.settings import AS_PUBLISHED, WeightFormats
from numaserve.workers.models.load import load_model_config

from tests.clients.environments import python_with
from tests.engines.comparison import cells, further, llama_scores, print_heads, run_llama
from tests.engines.hybrids import compare_hybrids
from tests.engines.towers import compare_towers
from tests.support.demo import ALICE, demo_model
from tests.support.llama_cpp import PACKAGE, VERSION
from tests.support.parity import CONTEXT, Texts, served_scores, transformers_scores

FOLDER = Path(__file__).resolve().parents[2] / "build" / "engines"
LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
FORMATS = (AS_PUBLISHED, WeightFormats(activations="bf16"))
KINDS = ("Q4_0", "Q4_K_M", "Q8_0")


def main(kinds: list[str]) -> int:
    """Compare on all kinds."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    os.environ.setdefault("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF")
    python = python_with({PACKAGE: VERSION}, FOLDER / "llama.cpp")
    is_further = False
    heads = ("file", "blocks", "llama.cpp", "top-1", "numaserve", "top-1", "bf16 activations", "top-1")
    print_heads(*heads, "numaserve's over it")
    for kind in kinds or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            is_further |= _compare(python, kind, Path(folder))
    if not kinds:
        print()
        is_further |= compare_hybrids(python, FOLDER)
        is_further |= compare_towers(FOLDER)
    return int(is_further)


def _compare(python: Path, kind: str, folder: Path) -> bool:
    """Print a row; whether numaserve is further away."""
    path = folder / "model.gguf"
    run_llama(python, "quantize", str(demo_model()), kind, str(path))
    texts = _texts(path)
    reference = transformers_scores(_expanded(path), texts)
    theirs = llama_scores(python, path, texts)
    ours, by_bf16 = (served_scores(path, 1, texts, formats) for formats in FORMATS)
    layouts = ", ".join(sorted({each.layout for each in load_model_config(path).stored.values()}))
    more, error = further(ours, theirs, reference)
    distances = " | ".join(cells(each, reference) for each in (theirs, ours, by_bf16))
    print(f"| {kind} | {layouts} | {distances} | {1 + more:.2f} ± {error:.2f} |", flush=True)
    return more > 2 * error


def _texts(path: Path) -> Texts:
    """Some 3000 tokens of real text, in pieces of the context's length."""
    found = [load_tokenizer(path).encode(text) for text in (ALICE, LICENSE.read_text())]
    return [ids[start : start + CONTEXT] for ids in found for start in range(0, len(ids) - 1, CONTEXT)]


def _expanded(path: Path) -> hf.PreTrainedModel:
    # It would read the file, a long vocabulary above all, for the configuration and again for the weights.
    with mock.patch.object(gguf, "GGUFReader", functools.cache(gguf.GGUFReader)):
        model = hf.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
