"""Folders with the files of sentence-transformers."""

import json
from collections.abc import Mapping
from pathlib import Path

DENSE = {"in_features": 72, "out_features": 72, "bias": True, "activation_function": "torch.nn.modules.linear.Identity"}
KINDS = ("Transformer", "Pooling", "Normalize")


def write_modules(
    folder: Path,
    *kinds: str,
    pooling: Mapping[str, object] | None = None,
    package: str = "sentence_transformers.models",
    **files: object,
) -> Path:
    """Write modules.json with `kinds` (default: `KINDS`), the Pooling module's config.json, and other `files` by their
    names without .json. Return `folder`."""
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"{package}.{kind}",
        }
        for index, kind in enumerate(kinds or KINDS)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for index, kind in enumerate(kinds or KINDS):
        if kind == "Dense":
            write_dense(folder / f"{index}_Dense")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def write_splade(folder: Path, package: str = "sentence_transformers.sparse_encoder.models", **config: object) -> Path:
    """Write modules.json of a SPLADE model, and the `config` of its pooling. Return `folder`."""
    old = package.endswith("models")
    write_modules(folder, "MLMTransformer" if old else "Transformer", "SpladePooling", package=package)
    (folder / "1_SpladePooling").mkdir()
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(config))
    return folder


def write_dense(folder: Path, **config: object) -> Path:
    """Write the configuration of a Dense module, as `DENSE` but for `config`. Return `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(DENSE | config))
    return folder
