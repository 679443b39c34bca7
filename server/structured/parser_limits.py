"""The limits of llguidance's parser, the same in the sandbox and in service, so that the sandbox predicts failures."""

from llguidance import LLMatcher, LLParserLimits, LLTokenizer


def new_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a matcher of `grammar`, in llguidance's form. Its `get_error` reports errors of the grammar."""
    limits = LLParserLimits(
        initial_lexer_fuel=1_000_000,  # some tens of milliseconds
        step_lexer_fuel=100_000,  # some milliseconds per mask
        step_max_items=25_000,  # about a millisecond per mask
        # About 200 bytes each, per sequence. A string with a `maxLength` takes several per character.
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,  # verbose ones contain the whole grammar and the answer
    )
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
