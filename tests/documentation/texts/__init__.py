"""Every text that can reach a user, and the rules that it is held to."""

import json
import re
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from tests.documentation.parts import ROOT
from tests.documentation.texts.readers import literals, markup_texts, python_texts, values

_LEAST_WORDS = 4
# Folders, endings of files, and the reader of these.
_SOURCES: tuple[tuple[str, str, Callable[[str], Iterator[str]]], ...] = (
    *((folder, "py", python_texts) for folder in ("server", "workers", "kernels", "shm_comm", "deploy")),
    *((folder, ending, literals) for folder in ("kernels", "shm_comm") for ending in ("cc", "h", "inl")),
    ("server/ui", "js", literals),
    ("server/ui", "html", markup_texts),
    ("deploy", "service", values),
    ("deploy", "socket", values),
)
# Prompts and descriptions for models, and words that a random prompt is made of: nobody else reads them.
_FOR_MODELS = {
    "server/surfaces/anthropic/client_tools.py",
    "server/generation/conversation/plain_tools.py",
    "server/generation/judge.py",
    "server/loadtest/workload/prompts.py",
}
# Code, markup, regular expressions, types of content, and options with their values.
_CODE = re.compile(
    r"#include|<!DOCTYPE|</\w+>|<\|\w+\|>|\(\?[:=!<P]|\[\^|\\[bdswS]|\.\*|\w\|[\w^\[\\]|^[\w-]+ '[\w-]+'$"
    r"|\b\w+/\w+; charset|^[\w-]+: \w+/\w+$|^--[\w-]+ \S+$|\{task\."
)
# The end of a help text that the default of a key makes.
_DEFAULT = re.compile(r" ?\[default: [^\]]*\]$")


class Text(NamedTuple):
    """A text, and the place that it comes from: a file, or what shows it."""

    place: str
    text: str


def all_texts() -> Iterator[Text]:
    """Yield every text of the product, each once."""
    seen: set[str] = set()
    for place, raw in (*_of_sources(), *_of_data(), *_shown()):
        text = " ".join(raw.split())
        if text and text not in seen:
            seen.add(text)
            yield Text(place, text)


def is_text(text: str) -> bool:
    """Return whether a string is a text: of at least four words, and no code."""
    words = re.findall(r"[A-Za-z][a-z']+", text)
    return len(words) >= _LEAST_WORDS and " " in text and not _CODE.search(text)


def _of_sources() -> Iterator[tuple[str, str]]:
    for folder, ending, reader in _SOURCES:
        for path in sorted((ROOT / folder).rglob(f"*.{ending}")):
            place = str(path.relative_to(ROOT))
            if place not in _FOR_MODELS:
                yield from ((place, text) for text in reader(path.read_text()) if is_text(text))


def _of_data() -> Iterator[tuple[str, str]]:
    for name, read in (("alerts.yml", yaml.safe_load), ("grafana/numaserve.json", json.loads)):
        yield from _described(name, read((ROOT / "deploy" / name).read_text()), {"title", "summary", "description"})


def _shown() -> Iterator[tuple[str, str]]:
    """Yield what commands, the API's description and /metrics show."""
    from numaserve.server.cli.main import whole_command  # the rules alone import no server
    from numaserve.server.gateway.models.metrics import FleetMetrics
    from numaserve.server.metrics.metrics import Metrics

    from tests.documentation.api import openapi

    yield from _helps("numaserve", whole_command())
    yield from _described("openapi.json", openapi(), {"summary", "description"})
    for registry in (Metrics("m").registry, FleetMetrics(["m"]).registry):
        yield from ((f"/metrics {metric.name}", metric.documentation) for metric in registry.collect())


def _helps(name: str, command: Any) -> Iterator[tuple[str, str]]:
    yield f"{name} --help", command.help or ""
    for parameter in command.params:
        yield f"{name} {parameter.opts[0]}", _DEFAULT.sub("", " ".join((getattr(parameter, "help", "") or "").split()))
    for inner, each in getattr(command, "commands", {}).items():
        yield from _helps(f"{name} {inner}", each)


def _described(place: str, tree: object, keys: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield the strings with these keys in a tree of data."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key in keys and isinstance(value, str):
                yield place, value
            else:
                yield from _described(f"{place} {key}" if len(place) < 80 else place, value, keys)
    elif isinstance(tree, list):
        for value in tree:
            yield from _described(place, value, keys)
