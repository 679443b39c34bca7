"""The file of block sizes of matrix products that a sweep has found, and the machine that they are for.

`numaserve bench kernels --sweep --write` writes the file, and `numaserve serve --blocking` reads it. Sizes that are
best for one processor may be slow on another, or with other kernels, so they are used on the same machine only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import SETTINGS_BYTES, read_text
from numaserve.workers.planning.doctor.host import Processor
from pydantic import BaseModel, ConfigDict, Field, ValidationError

_ABOUT = "# Block sizes of matrix products, written by `numaserve bench kernels --sweep --write`.\n"


class Swept(BaseModel):
    """The processor, its microcode and the kernels with which a sweep was made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vendor: str
    family: int
    model: int
    stepping: int
    microcode: str
    isa: str
    kernels: str  # digest of the native module

    @classmethod
    def on(cls, processor: Processor, isa: str, kernels: str) -> "Swept":
        """Return the description of a sweep on this processor."""
        same = {name: getattr(processor, name) for name in ("vendor", "family", "model", "stepping", "microcode")}
        return cls(**same, isa=isa, kernels=kernels)


class FoundBlocking(BaseModel):
    """The contents of the file. The kernels declare the names of the sizes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: Swept
    blocking: Annotated[dict[str, Annotated[int, Field(strict=True)]], Field(min_length=1)]

    def write(self, path: Path) -> None:
        """Write the file. Raises `OperatorError`."""
        try:
            path.write_text(_ABOUT + yaml.safe_dump(self.model_dump(), sort_keys=False))
        except OSError as error:
            raise OperatorError(f"--write {path}: cannot write the file: {error.strerror}") from None

    def differences(self, here: Swept) -> Mapping[str, tuple[Any, Any]]:
        """Return the fields, with both values, in which the machine of the sweep differs from the machine `here`."""
        then, now = self.machine.model_dump(), here.model_dump()
        return {name: (then[name], now[name]) for name in then if then[name] != now[name]}


def read_blocking(path: Path) -> FoundBlocking:
    """Read the file. Raises `OperatorError` with one line that states the error."""
    try:
        return FoundBlocking.model_validate(yaml.safe_load(read_text(path, SETTINGS_BYTES)))
    except (yaml.YAMLError, RecursionError) as error:
        raise OperatorError(f"--blocking {path} is not a YAML file: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise OperatorError(
            f"--blocking {path}: {key}: {first['msg']}; write the file again with"
            " `numaserve bench kernels --sweep --write FILE`"
        ) from None
