"""Texts as they are shown: help of commands, the API's description, metrics."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from numaserve.server.cli.main import whole_command
from numaserve.server.gateway.models.metrics import FleetMetrics
from numaserve.server.metrics.metrics import Metrics

from tests.documentation.api import openapi
from tests.documentation.texts import Text

# The end of a help text that the default of a key makes.
_DEFAULT = re.compile(r" ?\[default: [^\]]*\]$")


def shown_texts() -> Iterator[Text]:
    """Yield what commands, the API's description and /metrics show."""
    yield from _helps("numaserve", whole_command())
    yield from _described("openapi.json", openapi())
    for registry in (Metrics("m").registry, FleetMetrics(["m"]).registry):
        for metric in registry.collect():
            yield Text(f"/metrics {metric.name}", metric.documentation)


def _helps(name: str, command: Any) -> Iterator[Text]:
    yield Text(f"{name} --help", " ".join((command.help or "").split()))
    for parameter in command.params:
        if text := getattr(parameter, "help", None):
            yield Text(f"{name} {parameter.opts[0]}", _DEFAULT.sub("", " ".join(text.split())))
    for inner, each in getattr(command, "commands", {}).items():
        yield from _helps(f"{name} {inner}", each)


def _described(place: str, schema: object) -> Iterator[Text]:
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in ("description", "summary") and isinstance(value, str):
                yield Text(place, " ".join(value.split()))
            else:
                yield from _described(f"{place} {key}" if len(place) < 80 else place, value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _described(place, value)
