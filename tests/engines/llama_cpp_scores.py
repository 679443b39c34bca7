"""What llama.cpp makes of a GGUF file, in an environment that has llama-cpp-python and nothing of numaserve.

``quantize SOURCE KIND TARGET``: SOURCE in another kind, as llama.cpp's own quantizer mixes them. ``score MODEL TOKENS
SCORES``: TOKENS is a JSON list of texts, each a list of token ids; SCORES becomes a .npz of the log-probability of
each next one and the most likely token at each position, of one text after the other.
"""

import ctypes
import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

_THREADS = 2


def quantize(source: str, kind: str, target: str) -> None:
    """Raises `SystemExit` where llama.cpp cannot."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = _THREADS
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0:
        raise SystemExit(f"llama.cpp cannot make {kind} of {source}")


def score(model: str, tokens: str, scores: str) -> None:
    """As llama.cpp's own programs do by default, which the binding does not: with flash attention. Each text is a
    prompt."""
    texts = json.loads(Path(tokens).read_text())
    longest = max(map(len, texts))
    options = {"n_ctx": longest, "n_batch": longest, "n_threads": _THREADS, "flash_attn": True}
    llama = llama_cpp.Llama(model, **options, logits_all=True, verbose=False)
    logprobs, top = [], []
    for ids in texts:
        count = len(ids) - 1
        llama.reset()
        llama.eval(ids[:-1])
        logits = llama.scores[:count].astype(np.float64)
        peaks = logits.max(axis=1)
        totals = peaks + np.log(np.exp(logits - peaks[:, None]).sum(axis=1))
        logprobs.append(logits[np.arange(count), ids[1:]] - totals)
        top.append(logits.argmax(axis=1))
    np.savez(scores, logprobs=np.concatenate(logprobs), top=np.concatenate(top))


if __name__ == "__main__":
    {"quantize": quantize, "score": score}[sys.argv[1]](*sys.argv[2:])
