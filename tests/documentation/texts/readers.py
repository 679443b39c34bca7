"""Readers of sources: the strings of a file that may be texts. Values inside a text are `{}`."""

import ast
import re
from collections.abc import Iterator

# A comment, a regular expression, strings of C++ that stand next to each other, or a string or template of JavaScript.
_LITERALS = re.compile(
    r"//[^\n]*|/\*.*?\*/|(?:[=(,:!]|return) ?/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/"
    r"|(?P<strings>(?:\"(?:[^\"\\\n]|\\.)*\"\s*)+)|'(?P<single>(?:[^'\\\n]|\\.)*)'|`(?P<template>(?:[^`\\]|\\.)*)`",
    re.S,
)
_MARKUP = re.compile(r">([^<>{}]+)<|(?:title|aria-label|placeholder)=\"([^\"]+)\"")


def python_texts(source: str) -> Iterator[str]:
    """Yield each string that is no docstring, and each f-string."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(source)):  # outer nodes come before inner ones
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr) and id(node) not in skipped:
            skipped.update(id(part) for part in node.values)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def literals(source: str) -> Iterator[str]:
    """Yield each string of C++ or JavaScript."""
    # A quote between digits separates these: 1'000'000.
    for found in _LITERALS.finditer(re.sub(r"(?<=\d)'(?=\d)", "_", source)):
        if found["strings"]:
            yield re.sub(r'\\(["\\])', r"\1", re.sub(r'(?<!\\)"\s*"', "", found["strings"].strip())[1:-1])
        elif text := found["single"] or found["template"]:
            yield re.sub(r"\$\{[^{}]*\}", "{}", text)


def markup_texts(source: str) -> Iterator[str]:
    """Yield what a page shows."""
    return (found[1] or found[2] for found in _MARKUP.finditer(source))


def values(source: str) -> Iterator[str]:
    """Yield the descriptions of a unit of systemd."""
    return (line.removeprefix("Description=") for line in source.splitlines() if line.startswith("Description="))
