"""Constraints, what may be spent on them, and why one is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
from numaserve.server.engine.masks.matcher import TokenMatcher

ConstraintKind: TypeAlias = Literal["json_object", "json_schema", "regex", "choice", "lark", "structural_tag"]
MatcherFactory: TypeAlias = Callable[[], TokenMatcher]  # a fresh matcher at each call, which is cheap


class Constraint(msgspec.Struct, frozen=True):
    """What an answer must match. Equal ones of a scope are compiled once.

    `text` is a JSON schema (`json_schema`), a regular expression that the whole answer matches (`regex`), a JSON array
    of strings (`choice`), a grammar in Lark's form or in GBNF (`lark`), a structural tag's JSON (`structural_tag`), and
    empty for `json_object`.
    """

    kind: ConstraintKind
    text: str = ""


@dataclass(frozen=True)
class Limits:
    """What compiling may take. A constraint that needs more is refused."""

    max_bytes: int = 512 * 1024  # of a constraint's UTF-8
    max_depth: int = 100  # of nested JSON
    max_values: int = 50_000  # of JSON: keys, strings, numbers, arrays and objects
    cpu_seconds: float = 2.0  # of one compilation; usual ones take some milliseconds
    mask_seconds: float = 0.25  # CPU time of one of the first masks; usual ones take some tens of microseconds
    seconds: float = 10.0  # wall time of one compilation; several times as much, for a machine whose cores are all busy
    memory_bytes: int = 512 * 2**20  # of one compilation, beyond the tokenizer's
    threads: int = 2  # compilations at once
    queue: int = 64  # compilations at work or waiting
    cache_bytes: int = 256 * 2**20  # of compiled grammars that are kept, by what compiling them took


class UnsupportedGrammar(ValueError):
    """A constraint that cannot be served; the message is for the client. `keyword` is the schema's at fault, if any."""

    def __init__(self, message: str, keyword: str | None = None) -> None:
        super().__init__(message)
        self.keyword = keyword


class GrammarTooSlow(UnsupportedGrammar):
    """A constraint whose compilation takes longer than it may."""
