"""The files of a checkpoint whose content decides what a model computes."""

from collections.abc import Sequence
from pathlib import Path

_SUFFIXES = {".json", ".safetensors", ".pt"}


def checkpoint_files(model: Path, folders: Sequence[str] = (), mmproj: str | None = None) -> list[Path]:
    """Return the files of the .gguf file with its vision tower, in the file `mmproj` or in one next to it, or of the
    folder `model`, with some `folders` below it. Raises `OSError`."""
    if model.is_dir():
        listed = (path for folder in (model, *(model / name for name in folders)) for path in folder.iterdir())
        return sorted(path for path in listed if path.suffix in _SUFFIXES and path.is_file())
    # For GGUF files only, see `models/load.py`.
    from numaserve.workers.models.config.gguf_parts import gguf_paths, projector_paths  # noqa: PLC0415

    return [*gguf_paths(model), *(projector_paths(model) if mmproj is None else [Path(mmproj)])]
