"""Find the places in Python and C++ sources where one small edit makes a mutant."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
}
# clang-format puts blanks around binary operators and none around the brackets of templates.
_CXX_OPERATORS = {
    " < ": " <= ",
    " <= ": " < ",
    " > ": " >= ",
    " >= ": " > ",
    " == ": " != ",
    " != ": " == ",
    " && ": " || ",
    " || ": " && ",
    " + ": " - ",
    " - ": " + ",
    " * ": " + ",
    " += ": " -= ",
}
_CXX_TOKENS = re.compile("|".join(re.escape(each) for each in sorted(_CXX_OPERATORS, key=len, reverse=True)))
_CXX_INTEGER = re.compile(r"(?<![\w.\"'])(\d+)(?![\w.\"'])")
# Lines whose numbers and operators the compiler checks, or nothing runs.
_CXX_LEFT_OUT = re.compile(r"\s*(#|//|\*|/\*|template|static_assert|namespace|using|asm)")


@dataclass(frozen=True)
class Site:
    """A line of a source, from 1, and its text after an edit."""

    line: int
    becomes: str


def sites_of(path: Path) -> Iterator[Site]:
    """Yield every small edit of a Python or C++ source, in the order of the file."""
    text = path.read_text()
    edits = _python_edits(text) if path.suffix == ".py" else _cxx_edits(text)
    lines = text.splitlines()
    for row, start, end, new in edits:
        line = lines[row - 1]
        yield Site(row, line[:start] + new + line[end:])


Edit = tuple[int, int, int, str]  # line from 1, columns from 0, the text between them


def _python_edits(text: str) -> Iterator[Edit]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                yield from _between(lines, left, right, *_COMPARISONS[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                yield from _between(lines, left, right, *_ARITHMETIC[type(op)])
            case ast.BoolOp(op=op, values=[left, right, *_]):
                words = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield from _between(lines, left, right, *words)
            case ast.UnaryOp(op=ast.Not(), operand=operand) if node.lineno == operand.lineno:
                yield node.lineno, node.col_offset, operand.col_offset, ""
            case ast.Constant(value=bool(value)):
                yield node.lineno, node.col_offset, node.end_col_offset or 0, str(not value)
            case ast.Constant(value=int(value)):
                yield node.lineno, node.col_offset, node.end_col_offset or 0, str(value + 1)


def _between(lines: list[str], left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Edit]:
    """Yield the operator between two operands that stand in one line of ASCII."""
    row, start, end = left.end_lineno or 0, left.end_col_offset or 0, right.col_offset
    if row == right.lineno and lines[row - 1].isascii():
        at = lines[row - 1].find(old, start, end)
        if at >= 0:
            yield row, at, at + len(old), new


def _cxx_edits(text: str) -> Iterator[Edit]:
    for row, line in enumerate(text.splitlines(), 1):
        if _CXX_LEFT_OUT.match(line):
            continue
        code = re.sub(r'"[^"]*"', lambda found: " " * len(found[0]), line.partition("//")[0])
        for found in _CXX_TOKENS.finditer(code):
            yield row, *found.span(), _CXX_OPERATORS[found[0]]
        for found in _CXX_INTEGER.finditer(code):
            yield row, *found.span(), str(int(found[1]) + 1)
