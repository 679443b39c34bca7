"""Texts in the sources: messages of errors and log lines, help, descriptions, the page of /ui, units and alerts."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from tests.documentation.parts import ROOT
from tests.documentation.texts import Text
from tests.documentation.texts.readers import cpp_texts, markup_texts, python_texts, script_texts

_LEAST_WORDS = 4
_PYTHON = ("server", "workers", "kernels", "shm_comm", "deploy/installation", "deploy/ray")
_CPP = ("kernels", "shm_comm")
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


def source_texts() -> Iterator[Text]:
    """Yield the texts of the sources, by file."""
    for path in _files(_PYTHON, ".py"):
        if str(path.relative_to(ROOT)) not in _FOR_MODELS:
            yield from _placed(path, python_texts(path.read_text()))
    for path in _files(_CPP, ".cc", ".h", ".inl"):
        yield from _placed(path, cpp_texts(path.read_text()))
    for path in _files(["server/ui"], ".js"):
        yield from _placed(path, script_texts(path.read_text()))
    for path in _files(["server/ui"], ".html"):
        yield from _placed(path, markup_texts(path.read_text()))
    yield from _alerts()
    yield from _dashboard()
    for path in _files(["deploy"], ".service", ".socket"):
        yield from _placed(path, _values(path.read_text(), "Description="))


def _values(source: str, key: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith(key):
            yield number, line.removeprefix(key)


def _alerts() -> Iterator[Text]:
    path = ROOT / "deploy" / "alerts.yml"
    for group in yaml.safe_load(path.read_text())["groups"]:
        for rule in group["rules"]:
            for name, text in rule.get("annotations", {}).items():
                if is_text(text):
                    yield Text(f"{path.relative_to(ROOT)} {rule['alert']} {name}", " ".join(text.split()))


def _dashboard() -> Iterator[Text]:
    path = ROOT / "deploy" / "grafana" / "numaserve.json"
    for panel in json.loads(path.read_text())["panels"]:
        for inner in (panel, *panel.get("panels", ())):
            for name in ("title", "description"):
                if text := inner.get(name):
                    yield Text(f"{path.relative_to(ROOT)} panel {name}", text)


def _files(folders: Iterable[str], *suffixes: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)


def _placed(path: Path, texts: Iterable[tuple[int, str]]) -> Iterator[Text]:
    for line, text in texts:
        if is_text(text):
            yield Text(f"{path.relative_to(ROOT)}:{line}", " ".join(text.split()))


def is_text(text: str) -> bool:
    """Return whether a string of a source is a text: of at least four words, and no code."""
    words = re.findall(r"[A-Za-z][a-z']+", text)
    return len(words) >= _LEAST_WORDS and " " in text.strip() and not _CODE.search(text)
