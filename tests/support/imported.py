"""The modules that processes import until they serve a model, for those that fork them (see `forked`)."""

import pkgutil
from types import ModuleType

from numaserve.server.answers.reasoning import formats as reasoning_formats
from numaserve.server.answers.tools import formats as tool_formats
from numaserve.workers import models


def _modules(package: ModuleType) -> tuple[str, ...]:
    return tuple(f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__))


_FAMILIES = _modules(models)
# With torch, which the reference backend needs: its import takes longer than the rest of a small worker's life.
WORKER = ("numaserve.workers.process.main", "numaserve.workers.process.reference", *_FAMILIES)
# Besides the program of a server itself.
SERVER = (
    "numaserve.server.service.service",
    "numaserve.server.service.http",
    "numaserve.server.structured.grammars",
    "numaserve.server.service.checks.tokenizer_check_process",
    "numaserve.server.structured.vocabulary",
    "pydantic.v1",  # by FastAPI, for the first route with a parameter
    *_modules(tool_formats),
    *_modules(reasoning_formats),
    *_FAMILIES,
)
