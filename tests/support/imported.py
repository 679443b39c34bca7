"""The modules that processes import until they serve a model, for those that fork them (see `forked`)."""

import pkgutil

from numaserve.workers import models

_FAMILIES = tuple(f"{models.__name__}.{module.name}" for module in pkgutil.iter_modules(models.__path__))
# With torch, which the reference backend needs: its import takes longer than the rest of a small worker's life.
WORKER = ("numaserve.workers.process.main", "numaserve.workers.process.reference", *_FAMILIES)
# Besides the program of a server itself.
SERVER = (
    "numaserve.server.service.service",
    "numaserve.server.service.http",
    "numaserve.server.structured.grammars",
    *_FAMILIES,
)
