"""Texts in the sources: messages of errors and log lines, help, descriptions, the page of /ui, units and alerts."""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from tests.documentation.parts import ROOT
from tests.documentation.texts import Text

_LEAST_WORDS = 4
_PYTHON = ("server", "workers", "kernels", "shm_comm", "deploy/installation", "deploy/ray")
_CPP = ("kernels", "shm_comm")
# Literals of C++ that are one text: next to each other, or with values added between them.
_CPP_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_CPP_GAP = re.compile(r"\s*(?:\+\s*)?(?:(?!;|,\s*\n).)*?\+?\s*", re.S)
_SCRIPT_STRING = re.compile(r"`(?:[^`\\]|\\.)*`|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'")
_MARKUP = re.compile(r">([^<>{}]+)<|(?:title|aria-label|placeholder)=\"([^\"]+)\"")


def source_texts() -> Iterator[Text]:
    """Yield the texts of the sources, by file."""
    for path in _files(_PYTHON, ".py"):
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


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string that is no docstring and has at least four words; values are `{}`."""
    tree = ast.parse(source)
    inside = set(_docstrings(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in inside:
            inside.update(id(each) for each in ast.walk(node) if each is not node)
            yield node.lineno, "".join(_part(each) for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def _part(value: ast.expr) -> str:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else "{}"


def _docstrings(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr):
                yield id(first.value)


def cpp_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string in a statement; what is added between two is `{}`."""
    code = re.sub(r"//[^\n]*", lambda found: " " * len(found[0]), source)
    for statement in re.finditer(r"[^;{}]+", code):
        strings = list(_CPP_STRING.finditer(statement[0]))
        if not strings or statement[0].lstrip().startswith("#include"):
            continue
        text, end = "", strings[0].start()
        for string in strings:
            between = statement[0][end : string.start()].strip()
            text += ("{}" if between else "") + string[0][1:-1]
            end = string.end()
        line = source.count("\n", 0, statement.start() + strings[0].start()) + 1
        yield line, text + ("{}" if re.match(r"\s*\+", statement[0][end:]) else "")


def script_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string; values are `{}`."""
    code = re.sub(r"^\s*//[^\n]*|^import [^\n]*", "", source, flags=re.M)
    for found in _SCRIPT_STRING.finditer(code):
        yield code.count("\n", 0, found.start()) + 1, re.sub(r"\$\{[^}]*\}", "{}", found[0][1:-1])


def markup_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of what a page shows."""
    for found in _MARKUP.finditer(source):
        yield source.count("\n", 0, found.start()) + 1, " ".join((found[1] or found[2]).split())


def _values(source: str, key: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith(key):
            yield number, line.removeprefix(key)


def _alerts() -> Iterator[Text]:
    path = ROOT / "deploy" / "alerts.yml"
    for group in yaml.safe_load(path.read_text())["groups"]:
        for rule in group["rules"]:
            for name, text in rule.get("annotations", {}).items():
                if _is_text(text):
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
        if _is_text(text):
            yield Text(f"{path.relative_to(ROOT)}:{line}", " ".join(text.split()))


def _is_text(text: str) -> bool:
    words = re.findall(r"[A-Za-z][a-z']+", text)
    return len(words) >= _LEAST_WORDS and " " in text.strip()
