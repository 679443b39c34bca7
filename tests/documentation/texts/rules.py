"""Mechanical rules for texts that reach users."""

import re
from collections.abc import Iterator

_MOST_WORDS = 25

# An idiom, and what to write instead.
_IDIOMS = {
    r"^(?:What|How|Whether|Those|These|Whose|Who|Whoever|Of|As)\b(?!.*\?)": "open with a noun or a verb",
    r"(?:^|[.;:] )Of [^,.;]{1,60}[,;] ": "put the subject first",
    r"\b(?:so|just so|as) (?:many|much|few)\b(?! that)": "name the number or the limit",
    r"\bas may\b|\bthan may\b": "name the limit",
    r"\b(?:tells?|told)\b": "report, state, show, return or describe",
    r"\bheld against\b|\bheld up\b|\bin vain\b|\banew\b|\bfor ever\b|\blately\b|\bthereof\b|\bwhoever\b": "no idiom",
    r"\b(?:guess(?:es|ed|ing)?|rightness|front door)\b": "draft token, acceptance rate, gateway",
    r"\bbeside\b": "next to, alongside, while, compared with",
    r"\bbehind\b(?! (?:a |an |the )?(?:proxy|load balancer|router|gateway|reverse))": "after",
    r"\bby turns\b": "alternately, round-robin",
    r"\b(?:of|to|from|with|by|for|at|in) (?:which|whom)\b": "split the sentence and repeat the noun",
}
_COMPILED = [(re.compile(pattern), advice) for pattern, advice in _IDIOMS.items()]


def broken_rules(text: str) -> Iterator[str]:
    """Yield each rule that `text` breaks, with what to do about it."""
    plain = re.sub(r"`[^`]*`|\"[^\"]*\"|'[^' ]*'", "x", text)
    for pattern, advice in _COMPILED:
        if found := pattern.search(plain):
            yield f"{found[0].strip()!r}: {advice}"
    for sentence in re.split(r"(?<=[.!?:;]) ", plain):
        if (count := len(sentence.split())) > _MOST_WORDS:
            yield f"a sentence of {count} words: split it"
