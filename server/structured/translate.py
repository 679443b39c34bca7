"""The translation of constraints to grammars of llguidance."""

import json
from collections.abc import Iterator, Mapping

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark
from numaserve.server.structured.json_schema import with_bounds
from numaserve.server.structured.json_text import read_json
from numaserve.server.structured.long_answers import far_patterns
from numaserve.server.structured.structural_tag import structural_tag_grammar
from numaserve.server.structured.types import Constraint, Limits, UnsupportedGrammar


def to_llguidance(constraint: Constraint, special: Mapping[str, int], limits: Limits) -> str:
    """Return the grammar of `constraint`; `special` maps the spelling of special tokens to their ids.

    Raises `UnsupportedGrammar`. A slow or deep constraint can make this slow or exhaust the stack: never call it in the
    server's own process.
    """
    match constraint.kind:
        case "json_object":
            return LLMatcher.grammar_from_json_schema(json.dumps(with_bounds({"type": "object"})))
        case "json_schema":
            return _json_schema(constraint.text, limits)
        case "regex":
            return LLMatcher.grammar_from_regex(constraint.text)
        case "choice":
            return _choice(constraint.text, limits)
        case "lark":
            return _lark(constraint.text)
        case "structural_tag":
            return structural_tag_grammar(constraint.text, special, limits)


def grammars_of_far_patterns(constraint: Constraint, limits: Limits) -> Iterator[str]:
    """Yield grammars of single patterns of a JSON schema that the simulated answer to the whole schema may not
    reach."""
    if constraint.kind == "json_schema":
        for pattern in far_patterns(read_json(constraint.text, limits)):
            yield _json_schema(json.dumps({"type": "string", "pattern": pattern}), limits)


def _json_schema(text: str, limits: Limits) -> str:
    schema = read_json(text, limits)
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise UnsupportedGrammar("a JSON schema must be an object")
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(with_bounds(schema)))
    except ValueError as error:
        raise UnsupportedGrammar(f"the schema is not a valid JSON schema: {error}") from None


def _choice(text: str, limits: Limits) -> str:
    choices = read_json(text, limits)
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise UnsupportedGrammar("a choice must be a list of at least one string")
    # One terminal, because the parser allows at most 2,000 alternatives per rule. A terminal cannot be empty.
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in dict.fromkeys(choices) if choice)
    start = "start: ONE" + (" | " if "" in choices else "") if alternatives else 'start: ""'
    return LLMatcher.grammar_from_lark(f"{start}\nONE: {alternatives}" if alternatives else start)


def _lark(text: str) -> str:
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(text))
    except RecursionError:
        raise UnsupportedGrammar("the grammar is nested too deeply") from None
    except Exception as error:  # the converter from GBNF raises any exception
        raise UnsupportedGrammar(f"the grammar is neither a Lark grammar nor GBNF: {error}"[:500]) from None
