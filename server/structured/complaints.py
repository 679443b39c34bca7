"""llguidance's reasons for refusing a grammar, reworded for the client with the keyword at fault."""

import json
import re

from numaserve.server.structured.types import UnsupportedGrammar

_MAX_CHARS = 300
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*?\])")
_UNKNOWN_FORMAT = re.compile(r"Unknown format: (.*)")
_SPECIAL_TOKEN = re.compile(r'unknown special token: "(.*?)"')
# Patterns of complaints about a schema, with the keyword at fault.
_KEYWORDS = (
    (re.compile(r"regex parse error|lookarounds not supported"), "pattern"),
    (re.compile(r"retrieving it failed|^Pointer |circular references|Anchor"), "$ref"),
    (re.compile(r"oneOf constraints"), "oneOf"),
    (re.compile(r"patternProperty"), "patternProperties"),
    (re.compile(r"min/maxProperties"), "minProperties"),
    (re.compile(r"multiple of"), "multipleOf"),
    (re.compile(r"float range|integer range|relevance of lexemes"), "minimum, maximum or multipleOf"),
    (re.compile(r"x-guidance|JsonCompileOptions|expected one of `item_separator`"), "x-guidance"),
    (re.compile(r"[Ii]nvalid type|^type must"), "type"),
)
# llguidance's own message suggests options of llguidance.
_IN_OTHER_WORDS = {
    "oneOf": "the server cannot prove that at most one alternative matches; use anyOf",
    "$ref": "a reference must point into the schema itself, and circular references must not add keywords",
}
_TOO_FAR = (
    "the constraint has too many repetitions, or too many alternatives with a common prefix; lower the limits of the "
    "repetitions, or remove them"
)
# Messages for complaints that contain these texts.
_SAID = {
    "NoExtension": "no text can match the constraint",
    "too many states": _TOO_FAR,
    "too many expressions": _TOO_FAR,
}


def refusal(complaint: str) -> UnsupportedGrammar:
    """Return the error for a complaint of llguidance."""
    # A complaint may continue with parts of the grammar, the parser's state or a Rust backtrace.
    text = re.split(r"\n\s*\d+ \| |\n<|\n⟦|; following special tokens", complaint)[0].strip()
    if found := _UNIMPLEMENTED.search(text):
        names: list[str] = json.loads(found[1])
        return UnsupportedGrammar(f"the schema's {', '.join(names)} cannot be enforced; leave it out", names[0])
    if found := _UNKNOWN_FORMAT.search(text):
        return UnsupportedGrammar(
            f"the schema's format {_short(found[1])!r} cannot be enforced; leave it out", "format"
        )
    if found := _SPECIAL_TOKEN.search(text):
        return UnsupportedGrammar(f"the model has no special token {_short(found[1])}")
    if (said := next((said for part, said in _SAID.items() if part in text), None)) is not None:
        return UnsupportedGrammar(said)
    keyword = next((keyword for pattern, keyword in _KEYWORDS if pattern.search(text)), None)
    if keyword is None:
        return UnsupportedGrammar(f"the constraint cannot be compiled: {_short(text)}")
    return UnsupportedGrammar(
        f"the constraint's {keyword} cannot be enforced: {_short(_IN_OTHER_WORDS.get(keyword, text))}", keyword
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARS else line[:_MAX_CHARS] + "..."
