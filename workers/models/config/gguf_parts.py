"""A model in one GGUF file, or in several parts as `llama-gguf-split` makes them.

The parts are called `NAME-00001-of-00003.gguf` and so on, and lie in one folder; the first one has the metadata. The
vision tower of a model is in a file of its own: next to them, with a name that begins with `mmproj`, or anywhere.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from gguf import ReaderTensor
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.config.gguf_file import GGUFFile, open_gguf
from numaserve.workers.models.config.gguf_projector import projector_type

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_MAX_PARTS = 2**10


@dataclass(frozen=True)
class GGUFPart:
    """One file of a model."""

    path: Path
    file: GGUFFile


@dataclass(frozen=True)
class GGUFModel:
    """All files of a model, the one with the metadata first."""

    parts: tuple[GGUFPart, ...]
    projector: GGUFPart | None = None  # the file of the vision tower, if it is used

    @property
    def files(self) -> tuple[GGUFPart, ...]:
        """All files, with that of the tower."""
        return self.parts if self.projector is None else (*self.parts, self.projector)

    @property
    def metadata(self) -> GGUFFile:
        """The file that has the metadata."""
        return self.parts[0].file

    @property
    def tensors(self) -> Iterator[tuple[ReaderTensor, GGUFPart]]:
        """Yield all tensors, each with its file."""
        return ((tensor, part) for part in self.files for tensor in part.file.tensors)


def gguf_paths(path: Path) -> list[Path]:
    """Return the files of the model whose first or only file is `path`, according to its name."""
    named = _NAME.fullmatch(path.name)
    count = int(named[3]) if named else 1
    if named is None or not 1 <= count <= _MAX_PARTS:
        return [path]
    return [path.with_name(f"{named[1]}-{part + 1:05}-of-{count:05}.gguf") for part in range(count)]


def projector_paths(path: Path) -> list[Path]:
    """Return the files next to the model `path` that may have its vision tower: one that is named after the model, or
    all of them."""
    named = path.with_name(f"mmproj-{path.name}")
    return [named] if named.is_file() else sorted(path.parent.glob("mmproj*.gguf"))


def find_projector(path: Path, model: GGUFFile, known: Collection[str], named: Path | None = None) -> GGUFPart | None:
    """Return the file with the vision tower of the `model` at `path`, of one of the `known` projector types, and for
    its hidden size: the `named` one, or one next to the model. Without one, the model serves text only.

    Raises `OperatorError` where there are several, where the named one is for another model, and for a file that cannot
    be read.
    """
    hidden = model.scalar(f"{model.scalar('general.architecture')}.embedding_length")
    if named is not None:
        return _named_projector(named, hidden, known)
    parts = [GGUFPart(each, open_gguf(each)) for each in projector_paths(path)]
    fitting = [
        part
        for part in parts
        if projector_type(part.file) in known and part.file.scalar("clip.vision.projection_dim") == hidden
    ]
    if len(fitting) > 1:
        names = ", ".join(part.path.name for part in fitting)
        raise OperatorError(f"{path}: several vision towers lie next to the model: {names}. Set mmproj to one of them")
    return fitting[0] if fitting else None


def _named_projector(path: Path, hidden: object, known: Collection[str]) -> GGUFPart:
    """Return the vision tower at `path`. Raises `OperatorError` unless it is one for a model of that hidden size."""
    part = GGUFPart(path, open_gguf(path))
    kind, columns = projector_type(part.file), part.file.scalar("clip.vision.projection_dim")
    if kind is None:
        raise OperatorError(f"{path}: not a vision tower; set mmproj to the mmproj file of the model, or leave it out")
    if kind not in known:
        supported = ", ".join(sorted(known)) or "none for the architecture of this model"
        raise OperatorError(
            f"{path}: the vision tower has a projector of type {str(kind)[:100]!r}; supported are {supported}. Leave"
            " mmproj out to serve text only"
        )
    if columns != hidden:
        raise OperatorError(
            f"{path}: the vision tower has features of size {columns}, and the model has a hidden size of {hidden}; "
            "set mmproj to the file of this model"
        )
    return part


def open_gguf_model(path: Path) -> GGUFModel:
    """Open a model of one file or of several.

    Raises `OperatorError` when a file cannot be read or is damaged, and where parts are missing or do not belong
    together.
    """
    first = open_gguf(path)
    count = first.scalar("split.count")
    if not isinstance(count, int) or count <= 1:
        return GGUFModel((GGUFPart(path, first),))
    paths = gguf_paths(path)
    if first.scalar("split.no") != 0 or len(paths) != count or paths[0] != path:
        raise OperatorError(
            f"{path}: one of {count} parts of a model; give the first part, NAME-00001-of-{count:05}.gguf, and keep the"
            " other parts in the same folder"
        )
    parts = [GGUFPart(path, first), *(_open_part(each, no, count) for no, each in enumerate(paths[1:], 1))]
    names = [tensor.name for part in parts for tensor in part.file.tensors]
    if len(set(names)) != len(names) or first.scalar("split.tensors.count") not in {None, len(names)}:
        raise OperatorError(f"{path}: the {count} parts do not belong to one model; fetch all parts again")
    return GGUFModel(tuple(parts))


def _open_part(path: Path, no: int, count: int) -> GGUFPart:
    if not path.is_file():
        raise OperatorError(f"{path}: missing; put all {count} parts of the model into one folder")
    file = open_gguf(path)
    if (file.scalar("split.no"), file.scalar("split.count")) != (no, count):
        raise OperatorError(f"{path}: not part {no + 1} of {count}, although its name says so; fetch it again")
    return GGUFPart(path, file)
