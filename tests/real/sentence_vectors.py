"""Run in the environment of sentence-transformers: ``sentence_vectors.py FOLDER TEXTS.json VECTORS.npz``.

Writes the embeddings of the texts in fp32 and in bf16, each text alone.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer


def main(folder: str, texts: str, vectors: str) -> None:
    """Write the file `vectors`: two arrays of [texts, columns]."""
    torch.set_num_threads(1)
    found = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": dtype}, local_files_only=True)
        given = json.loads(Path(texts).read_text())
        found[name] = np.concatenate([model.encode([text], convert_to_tensor=True).float().numpy() for text in given])
    np.savez(vectors, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
