"""Readers of sources: the strings of a file that may be texts, with their lines. Values inside a text are `{}`."""

import ast
import re
from collections.abc import Iterator

Found = Iterator[tuple[int, str]]

# --- Python -----------------------------------------------------------------------------------------------------------

_PATTERN_FUNCTIONS = {"compile", "match", "fullmatch", "search", "sub", "split", "findall", "finditer"}


def python_texts(source: str) -> Found:
    """Yield each string that is shown: no docstring, annotation, regular expression or list of words."""
    tree = ast.parse(source)
    skipped = set(_no_texts(tree))
    for node in ast.walk(tree):  # outer nodes come before inner ones
        if id(node) in skipped or not isinstance(node, ast.JoinedStr | ast.BinOp | ast.Constant):
            continue
        if isinstance(node, ast.BinOp) and not _is_concatenation(node):
            continue
        if isinstance(node, ast.Constant) and not isinstance(node.value, str):
            continue
        parts = list(_parts(node))
        skipped.update(id(part) for part in parts if isinstance(part, ast.JoinedStr | ast.BinOp | ast.Constant))
        yield node.lineno, re.sub(r"(?:\{\}){2,}", "{}{}", "".join(map(_shown, parts)))


def _is_concatenation(node: ast.BinOp) -> bool:
    """Return whether a string stands in a sum: other sums are of numbers or lists."""
    return isinstance(node.op, ast.Add) and any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) for part in _parts(node)
    )


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the literals and values that a text is made of, and each sum or f-string inside it."""
    yield node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _parts(node.left)
        yield from _parts(node.right)
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _parts(value)


def _shown(part: ast.expr) -> str:
    if isinstance(part, ast.Constant) and isinstance(part.value, str):
        return part.value
    is_whole = isinstance(part, ast.JoinedStr) or (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add))
    return "" if is_whole else "{}"


def _no_texts(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if node.body and isinstance(first := node.body[0], ast.Expr):
                    yield id(first.value)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
                    yield from _strings_of_type(node.returns)
            case ast.AnnAssign(annotation=kind) | ast.arg(annotation=ast.expr() as kind):
                yield from _strings_of_type(kind)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[pattern, *_]):
                if name in _PATTERN_FUNCTIONS:
                    yield from _all_of(pattern)
            case ast.Call(func=ast.Attribute(value=words, attr="split")):
                yield from _all_of(words)


def _strings_of_type(kind: ast.expr) -> Iterator[int]:
    """Yield the names of types that are quoted, but not what stands in calls: the help of an option is in its type."""
    if not isinstance(kind, ast.Call):
        yield id(kind)
        for inner in ast.iter_child_nodes(kind):
            if isinstance(inner, ast.expr):
                yield from _strings_of_type(inner)


def _all_of(node: ast.expr) -> Iterator[int]:
    return (id(each) for each in ast.walk(node))


# --- C++ --------------------------------------------------------------------------------------------------------------

_CPP_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'', re.S)
_BALANCED = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
# Between two literals of one text: nothing, or a value that is added.
_CPP_VALUE = re.compile(r"\)?\s*\+\s*[^,;{}?()\[\]]+?\+\s*|\)?\s*<<[^,;{}?()\[\]]+?<<\s*")
# Documentation of bindings, which is for those who read _native.pyi, and what only a compiler says.
_CPP_NO_TEXT = re.compile(
    r"\bdef\w*\(|\bnb::(?:arg|class_|call_guard)|\breleased\b|\.doc\(\)|\bstatic_assert\b|^\s*,|#\w+"
)


def cpp_texts(source: str) -> Found:
    """Yield each string, with the literals next to it and the values added to it, but no documentation of bindings."""
    code, literals = _masked(source)
    group: list[tuple[int, int]] = []
    for literal in literals:
        if group and _joins(code[group[-1][1] : literal[0]]) is None:
            yield from _cpp_text(source, code, group)
            group = []
        group.append(literal)
    if group:
        yield from _cpp_text(source, code, group)


def _masked(source: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the code without comments and with blank literals, and the places of its strings."""
    literals: list[tuple[int, int]] = []

    def masked(found: re.Match[str]) -> str:
        if found[0][0] == '"':
            literals.append(found.span())
            return '"' + "_" * (len(found[0]) - 2) + '"'
        return re.sub(r"[^\n]", " ", found[0])

    # A quote between digits separates these: 1'000'000.
    return _CPP_TOKEN.sub(masked, re.sub(r"(?<=\d)'(?=\d)", "_", source)), literals


def _joins(gap: str) -> str | None:
    """Return what stands in the text for the code between two literals, or None where these are two texts."""
    if not gap.strip():
        return ""
    while (inner := _BALANCED.sub("", gap)) != gap:
        gap = inner
    is_value = _CPP_VALUE.fullmatch(gap) and not re.search(r"(?<!:):(?!:)", gap)
    return "{}" if is_value else None


def _cpp_text(source: str, code: str, group: list[tuple[int, int]]) -> Found:
    start, end = group[0][0], group[-1][1]
    before = code[max(code.rfind(each, 0, start) for each in ";{}") + 1 : start]
    if _CPP_NO_TEXT.search(before) and not re.search(r"\bthrow\b", before):
        return
    text = "{}" if re.search(r"\+\s*$", before) else ""
    for index, (first, last) in enumerate(group):
        if index:
            text += _joins(code[group[index - 1][1] : first]) or ""
        text += re.sub(r'\\(["\\])', r"\1", source[first + 1 : last - 1])
    yield source.count("\n", 0, start) + 1, text + ("{}" if re.match(r"\)?\s*(?:\+|<<)", code[end:]) else "")


# --- the page of /ui --------------------------------------------------------------------------------------------------

_SCRIPT_TOKEN = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    r"|(?P<template>`)|(?P<regex>/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*)|(?P<word>[\w$]+)|(?P<sign>\S)",
    re.S,
)
_MARKUP = re.compile(r">([^<>{}]+)<|(?:title|aria-label|placeholder)=\"([^\"]+)\"")


def script_texts(source: str) -> Found:
    """Yield each string of a script, but no name of a module."""
    before, at = "", 0  # the token before, and the place of the next one
    while found := _SCRIPT_TOKEN.search(source, at):
        at = found.end()
        line = source.count("\n", 0, found.start()) + 1
        if found["comment"]:
            continue
        if found["regex"] and re.fullmatch(r"[\w$)\]]+", before) and before != "return":
            at = found.start() + 1  # a division
        elif found["string"] and before not in {"from", "import"}:
            yield line, found["string"][1:-1]
        elif found["template"]:
            text, inner, at = _template(source, at)
            yield line, text
            for start, code in inner:
                yield from ((source.count("\n", 0, start) + each, text) for each, text in script_texts(code))
        before = found[0] if not found["template"] else "`"


def _template(source: str, at: int) -> tuple[str, list[tuple[int, str]], int]:
    """Return the text of a template that begins at `at`, its expressions with their places, and where it ends."""
    text, inner = "", []
    while source[at] != "`":
        if source.startswith("${", at):
            end = _end_of_expression(source, at + 2)
            inner.append((at + 2, source[at + 2 : end]))
            text += "{}"
            at = end + 1
        else:
            length = 2 if source[at] == "\\" else 1
            text += source[at : at + length]
            at += length
    return text, inner, at + 1


def _end_of_expression(source: str, at: int) -> int:
    depth = 0
    while source[at] != "}" or depth:
        if source[at] == "`":
            at = _template(source, at + 1)[2]
            continue
        if source[at] in "\"'":
            found = _SCRIPT_TOKEN.match(source, at)
            at = found.end() if found else at + 1
            continue
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        at += 1
    return at


def markup_texts(source: str) -> Found:
    """Yield what a page shows."""
    for found in _MARKUP.finditer(source):
        yield source.count("\n", 0, found.start()) + 1, " ".join((found[1] or found[2]).split())
