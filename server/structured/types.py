"""Constraints, the limits of their compilation, and the errors that refuse them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
from numaserve.server.scheduler.matcher import TokenMatcher

ConstraintKind: TypeAlias = Literal["json_object", "json_schema", "regex", "choice", "lark", "structural_tag"]
MatcherFactory: TypeAlias = Callable[[], TokenMatcher]  # returns a new matcher at each call, at little cost


class Constraint(msgspec.Struct, frozen=True):
    """The constraint that an answer must match. Equal constraints of a scope are compiled once.

    `text` depends on `kind`. For `json_schema` it is a JSON schema; for `regex`, a regular expression that the whole
    answer matches. For `choice` it is a JSON array of strings; for `lark`, a grammar in Lark or GBNF syntax. For
    `structural_tag` it is the tag's JSON; for `json_object` it is empty.
    """

    kind: ConstraintKind
    text: str = ""


@dataclass(frozen=True)
class Limits:
    """The limits of a compilation. A constraint that needs more is refused."""

    max_bytes: int = 512 * 1024  # of a constraint's UTF-8
    max_depth: int = 100  # of nested JSON
    max_values: int = 50_000  # of JSON: keys, strings, numbers, arrays and objects
    cpu_seconds: float = 2.0  # of one compilation; typically some milliseconds
    mask_seconds: float = 0.25  # CPU time of one of the first masks; typically some tens of microseconds
    seconds: float = 10.0  # wall time of one compilation; several times the CPU time, because all cores may be busy
    memory_bytes: int = 512 * 2**20  # of one compilation, in addition to the tokenizer's
    threads: int = 2  # concurrent compilations
    queue: int = 64  # running and waiting compilations
    cache_bytes: int = 256 * 2**20  # of cached grammars, counted by the memory that compiling them took


class UnsupportedGrammar(ValueError):
    """A constraint that cannot be served; the message is for the client. `keyword` is the schema's keyword at fault, if
    any."""

    def __init__(self, message: str, keyword: str | None = None) -> None:
        super().__init__(message)
        self.keyword = keyword


class GrammarTooSlow(UnsupportedGrammar):
    """A constraint whose compilation exceeds a time limit."""
